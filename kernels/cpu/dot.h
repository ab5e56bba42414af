/* Dot products of weight rows with activation rows: the one arithmetic core of linear layers, experts and attention.
 *
 * An output is the sum over k of w[k] * x[k] in one 16-lane accumulator walked in ascending k, folded by `v_reduce4`.
 * Tile shape, row count, weight type and thread play no part in that order.
 */
#pragma once
#include "common.h"
#include "simd.h"

INLINE vf load_type(const void *p, int type, long i)
{
    return type == BF16 ? v_load_bf16((const bf16 *)p + i) : v_load((const float *)p + i);
}
INLINE vf load_type_n(const void *p, int type, long i, int n)
{
    return type == BF16 ? v_load_bf16_n((const bf16 *)p + i, n) : v_load_n((const float *)p + i, n);
}
INLINE void store_type(void *p, int type, long i, vf a)
{
    if (type == BF16)
        v_store_bf16((bf16 *)p + i, a);
    else
        v_store((float *)p + i, a);
}
INLINE void store_type_n(void *p, int type, long i, vf a, int n)
{
    if (type == BF16)
        v_store_bf16_n((bf16 *)p + i, a, n);
    else
        v_store_n((float *)p + i, a, n);
}
INLINE const void *offset(const void *p, int type, long i) { return (const char *)p + i * (type == BF16 ? 2 : 4); }

#define rows_dot FN(rows_dot)
#define widen_rows FN(widen_rows)

/* `nw` weight rows, `ldw` elements apart, against R <= RMAX activation rows: out[r * ldo + j] = w[j] . x[r]. */
void rows_dot(int R, int type, const void *w, long ldw, long nw, const float *const *x, long K, float *out, long ldo);

/* Widens n rows of bf16 weights once, when many activation rows will read them: out [n, K]. */
void widen_rows(const void *w, long ldw, long n, long K, float *out);

#define WIDEN_FROM 18 /* activation rows from which widening pays */
