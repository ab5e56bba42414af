#include "dot.h"

/* Four weight rows against R activation rows; results for weight row i, activation row r go to out[r * ldo + i].
 * `ahead` bytes further on lie the rows of the next tile: their lines are requested while these are multiplied. */
INLINE void tile(const int R, const int type, const void *const w[4], const float *const *x, long K, float *out, long ldo,
                 long ahead)
{
    const char *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3];
    const long size = type == BF16 ? 2 : 4;
    vf acc[RMAX][4];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
        acc[r][0] = acc[r][1] = acc[r][2] = acc[r][3] = v_zero();
#define STEP(LOADW, LOADX)                                                                                             \
    {                                                                                                                  \
        vf v0 = LOADW(w0), v1 = LOADW(w1), v2 = LOADW(w2), v3 = LOADW(w3);                                             \
        _Pragma("GCC unroll 8") for (int r = 0; r < R; r++)                                                            \
        {                                                                                                              \
            vf xv = LOADX(x[r]);                                                                                       \
            acc[r][0] = v_fma(v0, xv, acc[r][0]);                                                                      \
            acc[r][1] = v_fma(v1, xv, acc[r][1]);                                                                      \
            acc[r][2] = v_fma(v2, xv, acc[r][2]);                                                                      \
            acc[r][3] = v_fma(v3, xv, acc[r][3]);                                                                      \
        }                                                                                                              \
    }
#define FULL_W(p) load_type(p, type, k)
#define FULL_X(p) v_load(p + k)
#define PART_W(p) load_type_n(p, type, k, (int)(K - k))
#define PART_X(p) v_load_n(p + k, (int)(K - k))
    long k = 0;
    for (; k + 2 * LANES <= K; k += LANES) {
        if (R <= 4) {
            for (long line = 0; line < 2 * LANES * size; line += 64) {
                _mm_prefetch(w0 + k * size + ahead + line, _MM_HINT_T1);
                _mm_prefetch(w1 + k * size + ahead + line, _MM_HINT_T1);
                _mm_prefetch(w2 + k * size + ahead + line, _MM_HINT_T1);
                _mm_prefetch(w3 + k * size + ahead + line, _MM_HINT_T1);
            }
        }
        STEP(FULL_W, FULL_X)
        k += LANES;
        STEP(FULL_W, FULL_X)
    }
    for (; k + LANES <= K; k += LANES)
        STEP(FULL_W, FULL_X)
    if (k < K)
        STEP(PART_W, PART_X)
#undef STEP
#undef FULL_W
#undef FULL_X
#undef PART_W
#undef PART_X
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
        _mm_storeu_ps(out + r * ldo, v_reduce4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]));
}

INLINE void tiles(const int R, const int type, const void *w, long ldw, long nw, const float *const *x, long K, float *out,
                  long ldo)
{
    const long step = ldw * (type == BF16 ? 2 : 4);
    /* Short rows: several tiles ahead, or the lines would be asked for too late. */
    const long ahead = step * max_l(4, 8192 / (K * (type == BF16 ? 2 : 4)));
    const char *row = w;
    long j = 0;
    for (; j + 4 <= nw; j += 4, row += 4 * step) {
        const void *rows[4] = {row, row + step, row + 2 * step, row + 3 * step};
        tile(R, type, rows, x, K, out + j, ldo, ahead);
    }
    if (j < nw) { /* the last rows: repeat one in place of those that do not exist, and drop its results */
        const char *last = row + (nw - j - 1) * step;
        const void *rows[4] = {row, j + 1 < nw ? row + step : last, j + 2 < nw ? row + 2 * step : last, last};
        float part[RMAX * 4];
        tile(R, type, rows, x, K, part, 4, 0);
        for (int r = 0; r < R; r++)
            for (long i = j; i < nw; i++)
                out[r * ldo + i] = part[r * 4 + i - j];
    }
}

void rows_dot(int R, int type, const void *w, long ldw, long nw, const float *const *x, long K, float *out, long ldo)
{
#define CASE(r)                                                                                                        \
    case r:                                                                                                            \
        if (type == BF16)                                                                                              \
            tiles(r, BF16, w, ldw, nw, x, K, out, ldo);                                                                \
        else                                                                                                           \
            tiles(r, F32, w, ldw, nw, x, K, out, ldo);                                                                 \
        break;
    switch (R) {
        CASE(1)
        CASE(2)
#if RMAX > 2
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
#endif
    }
#undef CASE
}

void widen_rows(const void *w, long ldw, long n, long K, float *out)
{
    for (long j = 0; j < n; j++) {
        const bf16 *row = (const bf16 *)w + j * ldw;
        long k = 0;
        for (; k + LANES <= K; k += LANES)
            v_store(out + j * K + k, v_load_bf16(row + k));
        if (k < K)
            v_store_n(out + j * K + k, v_load_bf16_n(row + k, (int)(K - k)), (int)(K - k));
    }
}
