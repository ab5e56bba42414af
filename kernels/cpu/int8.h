/* 4-bit weight rows against activation rows rounded to 8 bits, in whole numbers (AVX-512 VNNI).
 *
 * Each 64 columns of an activation row share a scale, the largest of them over 127. Rounding costs about 0.4 % of a
 * value, a small part of what 4-bit weights do. Rows are rounded alone and sums run over ascending groups, so that a
 * result does not depend on the other rows. A row with a value that is not finite gives NaN.
 */
#pragma once
#include "int4.h"

#define BLOCK8 64

#define has_vnni FN(has_vnni)
#define round_row8 FN(round_row8)
#define rows_dot48 FN(rows_dot48)

int has_vnni(void); /* whether the other two may be called */

static inline long blocks8(long K) { return (K + BLOCK8 - 1) / BLOCK8; }

/* A rounded row: per block 64 values, then per block 16 starting sums, then per block a scale. */
static inline size_t row8_bytes(long K) { return (size_t)blocks8(K) * 2 * BLOCK8 + align64((size_t)blocks8(K) * 4); }

void round_row8(const float *x, long K, char *row);

/* As rows_dot, over R rounded rows. */
void rows_dot48(int R, const Rows4 *w, long nw, const char *const *x, long K, float *out, long ldo);
