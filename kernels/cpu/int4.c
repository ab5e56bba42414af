#include "int4.h"

#if RMAX > 4
#define RMAX4 4 /* beside the accumulators, four rows of values must fit the registers */
#else
#define RMAX4 RMAX
#endif

typedef struct {
    const uint8_t *codes[4];
    const bf16 *scales[4];
} Tile4;

/* Four weight rows against R activation rows, as `tile` in dot.c. */
INLINE void tile4(const int R, const Tile4 *t, long group, const float *const *x, long K, float *out, long ldo, long ahead)
{
    vf acc[RMAX4][4];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
        acc[r][0] = acc[r][1] = acc[r][2] = acc[r][3] = v_zero();
#define MULTIPLY(HALF, LOADX)                                                                                          \
    {                                                                                                                  \
        vf v0 = HALF(t->codes[0] + b, q0), v1 = HALF(t->codes[1] + b, q1);                                             \
        vf v2 = HALF(t->codes[2] + b, q2), v3 = HALF(t->codes[3] + b, q3);                                             \
        _Pragma("GCC unroll 4") for (int r = 0; r < R; r++)                                                            \
        {                                                                                                              \
            vf xv = LOADX;                                                                                             \
            acc[r][0] = v_fma(v0, xv, acc[r][0]);                                                                      \
            acc[r][1] = v_fma(v1, xv, acc[r][1]);                                                                      \
            acc[r][2] = v_fma(v2, xv, acc[r][2]);                                                                      \
            acc[r][3] = v_fma(v3, xv, acc[r][3]);                                                                      \
        }                                                                                                              \
    }
    for (long k = 0, g = 0; k < K; g++) {
        const vq q0 = q_values(scale_of(t->scales[0][g])), q1 = q_values(scale_of(t->scales[1][g]));
        const vq q2 = q_values(scale_of(t->scales[2][g])), q3 = q_values(scale_of(t->scales[3][g]));
        const long end = min_l(k + group, K);
        for (long line = k / 2; line < end / 2; line += 64) {
            _mm_prefetch((const char *)t->codes[0] + line + ahead, _MM_HINT_T0);
            _mm_prefetch((const char *)t->codes[1] + line + ahead, _MM_HINT_T0);
            _mm_prefetch((const char *)t->codes[2] + line + ahead, _MM_HINT_T0);
            _mm_prefetch((const char *)t->codes[3] + line + ahead, _MM_HINT_T0);
        }
        for (; k + BLOCK4 <= end; k += BLOCK4) {
            const long b = k / 2;
            MULTIPLY(q_low, v_load(x[r] + k))
            MULTIPLY(q_high, v_load(x[r] + k + LANES))
        }
        if (k < end) { /* the last block of the row */
            const long b = k / 2;
            const int first = (int)min_l(LANES, end - k), rest = (int)(end - k) - first;
            MULTIPLY(q_low, v_load_n(x[r] + k, first))
            if (rest)
                MULTIPLY(q_high, v_load_n(x[r] + k + LANES, rest))
            k = end;
        }
    }
#undef MULTIPLY
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
        _mm_storeu_ps(out + r * ldo, v_reduce4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]));
}

INLINE void tiles4(const int R, const Rows4 *w, long nw, const float *const *x, long K, float *out, long ldo)
{
    const long ahead = w->ld * max_l(4, 8192 / w->ld & ~3L);
    for (long j = 0; j < nw; j += 4) {
        const int n = (int)min_l(4, nw - j);
        Tile4 t;
        for (int i = 0; i < 4; i++) { /* rows that do not exist repeat the last one */
            long row = j + min_l(i, n - 1);
            t.codes[i] = w->codes + row * w->ld, t.scales[i] = w->scales + row * w->groups;
        }
        if (n == 4) {
            tile4(R, &t, w->group, x, K, out + j, ldo, ahead);
            continue;
        }
        float part[RMAX4 * 4];
        tile4(R, &t, w->group, x, K, part, 4, 0);
        for (int r = 0; r < R; r++)
            for (int i = 0; i < n; i++)
                out[r * ldo + j + i] = part[r * 4 + i];
    }
}

void rows_dot4(int R, const Rows4 *w, long nw, const float *const *x, long K, float *out, long ldo)
{
    for (int most; R > 0; R -= most, x += most, out += most * ldo) {
        most = R <= RMAX4 ? R : R == RMAX4 + 1 ? RMAX4 - 1 : RMAX4;
        switch (most) {
        case 1:
            tiles4(1, w, nw, x, K, out, ldo);
            break;
        case 2:
            tiles4(2, w, nw, x, K, out, ldo);
            break;
#if RMAX4 > 2
        case 3:
            tiles4(3, w, nw, x, K, out, ldo);
            break;
        case 4:
            tiles4(4, w, nw, x, K, out, ldo);
            break;
#endif
        }
    }
}

void dequantise_rows(const Rows4 *w, long n, long K, float *out)
{
    for (long j = 0; j < n; j++, out += K)
        for (long k = 0, g = 0; k < K; g++) {
            const vq values = q_values(scale_of(w->scales[j * w->groups + g]));
            for (const long end = min_l(k + w->group, K); k < end; k += BLOCK4) {
                const uint8_t *p = w->codes + j * w->ld + k / 2;
                const long left = min_l(BLOCK4, K - k);
                if (left == BLOCK4) {
                    v_store(out + k, q_low(p, values));
                    v_store(out + k + LANES, q_high(p, values));
                    continue;
                }
                v_store_n(out + k, q_low(p, values), (int)min_l(LANES, left));
                if (left > LANES)
                    v_store_n(out + k + LANES, q_high(p, values), (int)(left - LANES));
                k = K;
            }
        }
}
