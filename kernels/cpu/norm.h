/* RMS norm of one row, and the activation rows of an operation as fp32: normalised, widened or in place. */
#pragma once
#include "dot.h"

#define norm_row FN(norm_row)
#define prepare FN(prepare)

/* y = x * rsqrt(mean(x^2) + eps), rounded to xtype, times weight, rounded to xtype; y holds fp32 values. */
void norm_row(const Norm *norm, const void *x, int xtype, long d, float *y);

typedef struct {
    const void *x;
    int xtype;
    const Norm *norm;
    long t, d;
    float *memory; /* prepare_bytes() of scratch */
} Prepare;

/* Few values: each thread prepares its own copy, which is cheaper than a barrier. */
INLINE int prepare_alone(const Prepare *p) { return p->t * p->d <= 8192; }
INLINE int prepare_nothing(const Prepare *p) { return p->xtype == F32 && !p->norm->weight; }
static inline size_t prepare_bytes(const Prepare *p, int n)
{
    return prepare_nothing(p) ? 0 : align64((size_t)(p->t * p->d) * 4) * (size_t)(prepare_alone(p) ? n : 1);
}

/* Returns x as fp32 rows [t, d], the same values in every thread. Uses the given work queue. */
const float *prepare(const Prepare *p, Team *team, int queue);
