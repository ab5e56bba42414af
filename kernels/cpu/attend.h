/* Steps that attention over a KV arena is made of: online softmax over a block of scores, weighted sums of values. */
#pragma once
#include "norm.h"

#define BLOCK 64
#define LOW (-1e30f) /* maximum of no keys: finite, so that differences stay defined */

/* acc[r, c0:c0+C*16] += sum over j of p[r, j] * V[j]: R rows, C vectors of columns, j ascending. */
INLINE void pv_tile(const int R, const int C, int type, const void *v, long ldv, long nj, const float *p, float *acc, long d,
                    int lanes)
{
    vf sum[RMAX][4];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int c = 0; c < C; c++)
            sum[r][c] = lanes == LANES ? v_load(acc + r * d + c * LANES) : v_load_n(acc + r * d + c * LANES, lanes);
    const long size = type == BF16 ? 2 : 4;
    for (long j = 0; j < nj; j++) {
        vf row[4];
        if (C == 4 && R <= 4) /* memory-bound: heads lie apart, which the hardware's prefetching does not follow */
            for (long line = 0; line < C * LANES * size; line += 64)
                _mm_prefetch((const char *)v + (j + 32) * ldv * size + line, _MM_HINT_T1);
#pragma GCC unroll 4
        for (int c = 0; c < C; c++)
            row[c] = lanes == LANES ? load_type(v, type, j * ldv + c * LANES)
                                    : load_type_n(v, type, j * ldv + c * LANES, lanes);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            vf w = v_set1(p[r * BLOCK + j]);
#pragma GCC unroll 4
            for (int c = 0; c < C; c++)
                sum[r][c] = v_fma(w, row[c], sum[r][c]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) {
            if (lanes == LANES)
                v_store(acc + r * d + c * LANES, sum[r][c]);
            else
                v_store_n(acc + r * d + c * LANES, sum[r][c], lanes);
        }
}

INLINE void pv_columns(const int R, const int type, const void *v, long ldv, long nj, const float *p, float *acc, long d)
{
    long c = 0;
    for (; c + 4 * LANES <= d; c += 4 * LANES)
        pv_tile(R, 4, type, offset(v, type, c), ldv, nj, p, acc + c, d, LANES);
    for (; c + LANES <= d; c += LANES)
        pv_tile(R, 1, type, offset(v, type, c), ldv, nj, p, acc + c, d, LANES);
    if (c < d)
        pv_tile(R, 1, type, offset(v, type, c), ldv, nj, p, acc + c, d, (int)(d - c));
}

static __attribute__((noinline)) void pv(int R, int type, const void *v, long ldv, long nj, const float *p, float *acc, long d)
{
#define CASE(r)                                                                                                        \
    case r:                                                                                                            \
        if (type == BF16)                                                                                              \
            pv_columns(r, BF16, v, ldv, nj, p, acc, d);                                                                \
        else                                                                                                           \
            pv_columns(r, F32, v, ldv, nj, p, acc, d);                                                                 \
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

INLINE float exp1(float x) { return v_first(v_exp(v_set1(x))); }

INLINE void scale_row(float *x, float by, long d)
{
    if (by == 1.0f)
        return;
    for (long i = 0; i < d; i += LANES) {
        int n = (int)min_l(LANES, d - i);
        if (n == LANES)
            v_store(x + i, v_mul(v_load(x + i), v_set1(by)));
        else
            v_store_n(x + i, v_mul(v_load_n(x + i, n), v_set1(by)), n);
    }
}

/* Turns the pairs (i, half + i) of y by the angles of one position. */
INLINE void rotate(float *y, const float *cos, const float *sin, long half)
{
    for (long i = 0; i < half; i += LANES) {
        int n = (int)min_l(LANES, half - i);
        vf c = n == LANES ? v_load(cos + i) : v_load_n(cos + i, n), s = n == LANES ? v_load(sin + i) : v_load_n(sin + i, n);
        vf u = n == LANES ? v_load(y + i) : v_load_n(y + i, n);
        vf v = n == LANES ? v_load(y + half + i) : v_load_n(y + half + i, n);
        vf first = v_sub(v_mul(u, c), v_mul(v, s)), second = v_fma(v, c, v_mul(u, s));
        if (n == LANES) {
            v_store(y + i, first);
            v_store(y + half + i, second);
        } else {
            v_store_n(y + i, first, n);
            v_store_n(y + half + i, second, n);
        }
    }
}

/* Scores [from, to) of a BLOCK become weights, zero elsewhere; returns what the earlier accumulator is multiplied by. */
INLINE float softmax_block(float *score, long from, long to, float *top, float *sum)
{
    vf best = v_set1(LOW), part[BLOCK / LANES];
    for (long i = 0; i < BLOCK; i += LANES)
        best = v_max(best, v_window(v_load(score + i), v_set1(LOW), from - i, to - i));
    float old = *top, now = v_hmax(best);
    now = now > old ? now : old;
    for (long i = 0; i < BLOCK; i += LANES) {
        vf e = v_exp(v_sub(v_load(score + i), v_set1(now)));
        v_store(score + i, part[i / LANES] = v_window(e, v_zero(), from - i, to - i));
    }
    float keep = exp1(old - now);
    *sum = *sum * keep + v_sum(v_add(v_add(part[0], part[1]), v_add(part[2], part[3])));
    *top = now;
    return keep;
}
