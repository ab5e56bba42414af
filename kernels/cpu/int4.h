/* Weight rows in 4 bits (the stored form is described in int4.py).
 *
 * A code becomes code - 8 times the scale of its group, which is exact in fp32, and sums run as in `rows_dot`: the
 * results have the bits of the same rows held in fp32.
 */
#pragma once
#include "dot.h"

#define BLOCK4 32           /* columns of a block, in 16 bytes */
#define DEQUANTISE_FROM 12  /* activation rows from which rows are better multiplied out once */

#ifdef VARIANT_AVX512
typedef vf vq; /* the sixteen values of a code under one scale */

INLINE vq q_values(float scale)
{
    const __m512 q = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_mul_ps(q, _mm512_set1_ps(scale));
}
/* The lookup reads the low four bits of each lane, so nothing is masked. */
INLINE vf q_low(const uint8_t *p, vq values)
{
    return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)), values);
}
INLINE vf q_high(const uint8_t *p, vq values)
{
    return _mm512_permutexvar_ps(_mm512_srli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)), 4), values);
}
/* Packs a block: q whole numbers in [-8, 7], of columns 0..15 and 16..31. */
INLINE void q_store(uint8_t *p, vf low, vf high)
{
    const __m512 eight = _mm512_set1_ps(8.0f);
    __m512i lo = _mm512_cvtps_epi32(_mm512_add_ps(low, eight)), hi = _mm512_cvtps_epi32(_mm512_add_ps(high, eight));
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_or_si512(lo, _mm512_slli_epi32(hi, 4))));
}
#else
typedef vf vq; /* the scale */

INLINE vq q_values(float scale) { return v_set1(scale); }
INLINE __m256 q_half(__m128i bytes, __m256 scale)
{
    __m256i code = _mm256_and_si256(_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(15));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(code, _mm256_set1_epi32(8))), scale);
}
INLINE vf q_of_bytes(__m128i bytes, vq values)
{
    return (vf){q_half(bytes, values.lo), q_half(_mm_srli_si128(bytes, 8), values.hi)};
}
INLINE vf q_low(const uint8_t *p, vq values) { return q_of_bytes(_mm_loadu_si128((const __m128i *)p), values); }
INLINE vf q_high(const uint8_t *p, vq values)
{
    return q_of_bytes(_mm_srli_epi16(_mm_loadu_si128((const __m128i *)p), 4), values); /* strays land above bit 3 */
}
INLINE void q_store(uint8_t *p, vf low, vf high)
{
    float lo[LANES], hi[LANES];
    v_store(lo, low);
    v_store(hi, high);
    for (int i = 0; i < LANES; i++)
        p[i] = (uint8_t)((int)(lo[i] + 8.0f) | (int)(hi[i] + 8.0f) << 4);
}
#endif

typedef struct {
    const uint8_t *codes; /* rows ld bytes apart */
    const bf16 *scales;   /* rows `groups` apart */
    long ld, groups, group;
} Rows4;

INLINE float scale_of(bf16 bits)
{
    union {
        uint32_t u;
        float f;
    } both = {(uint32_t)bits << 16};
    return both.f;
}

#define rows_dot4 FN(rows_dot4)
#define dequantise_rows FN(dequantise_rows)

/* As rows_dot. */
void rows_dot4(int R, const Rows4 *w, long nw, const float *const *x, long K, float *out, long ldo);

/* n rows as fp32 [n, K]. */
void dequantise_rows(const Rows4 *w, long n, long K, float *out);
