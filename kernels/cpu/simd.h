/* One vector type of 16 floats (`vf`) for both instruction sets: one zmm register, or two ymm registers.
 *
 * Every reduction in this library runs over 16 lanes and ends in `v_reduce4`, so the order of additions is the
 * same in both variants, and depends on the length of the reduction alone.
 * `_n` forms touch only the first n lanes (0 < n < 16); the others read as zero and are not stored.
 */
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define LANES 16

typedef uint16_t bf16;

/* ((0+1)+(2+3)) + ((4+5)+(6+7)) of each of four 8-lane vectors. */
INLINE __m128 reduce4_ps256(__m256 a, __m256 b, __m256 c, __m256 d)
{
    __m256 quads = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1));
}

#ifdef VARIANT_AVX512
typedef __m512 vf;
#define FN(name) name##_avx512
#define RMAX 6 /* activation rows of a register tile: 4 x 6 accumulators */

INLINE vf v_zero(void) { return _mm512_setzero_ps(); }
INLINE vf v_set1(float a) { return _mm512_set1_ps(a); }
INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE vf v_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
INLINE void v_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
INLINE void v_store_n(float *p, vf a, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a); }
INLINE vf bf16_widen(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }
INLINE vf v_load_bf16(const bf16 *p) { return bf16_widen(_mm256_loadu_si256((const __m256i *)p)); }
INLINE vf v_load_bf16_n(const bf16 *p, int n)
{
    return bf16_widen(_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p));
}
INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf v_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vf v_exp2i(vf n) /* 2^n of integral n in [-126, 127] */
{
    __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
}
INLINE __m512i bf16_bits(vf a) /* upper half of each lane: a rounded to nearest even, NaN kept quiet */
{
    __m512i u = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi32(r, nan, _mm512_or_si512(u, _mm512_set1_epi32(0x400000)));
}
INLINE vf v_round_bf16(vf a)
{
    return _mm512_castsi512_ps(_mm512_and_si512(bf16_bits(a), _mm512_set1_epi32((int)0xffff0000)));
}
INLINE void v_store_bf16(bf16 *p, vf a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_bits(a), 16)));
}
INLINE void v_store_bf16_n(bf16 *p, vf a, int n)
{
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_bits(a), 16)));
}
INLINE float v_first(vf a) { return _mm512_cvtss_f32(a); }
INLINE __m256 v_fold(vf a) { return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)); }
/* Lanes lo <= i < hi of a, elsewhere b. */
INLINE vf v_window(vf a, vf b, long lo, long hi)
{
    unsigned below_hi = hi >= LANES ? 0xffffu : hi <= 0 ? 0 : (1u << hi) - 1;
    unsigned below_lo = lo >= LANES ? 0xffffu : lo <= 0 ? 0 : (1u << lo) - 1;
    return _mm512_mask_mov_ps(b, (__mmask16)(below_hi & ~below_lo), a);
}
INLINE unsigned v_equal_mask(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
INLINE vf v_nan_to(vf a, vf b) { return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), b); }

#else /* AVX2 + FMA */
typedef struct {
    __m256 lo, hi;
} vf;
#define FN(name) name##_avx2
#define RMAX 2 /* sixteen ymm registers hold no larger tile */

INLINE vf v_zero(void) { return (vf){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INLINE vf v_set1(float a) { return (vf){_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
INLINE vf v_load(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void v_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
INLINE vf v_load_n(const float *p, int n)
{
    float t[LANES] = {0};
    memcpy(t, p, (size_t)n * sizeof *p);
    return v_load(t);
}
INLINE void v_store_n(float *p, vf a, int n)
{
    float t[LANES];
    v_store(t, a);
    memcpy(p, t, (size_t)n * sizeof *p);
}
INLINE __m256 bf16_widen(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
INLINE vf v_load_bf16(const bf16 *p)
{
    return (vf){bf16_widen(_mm_loadu_si128((const __m128i *)p)), bf16_widen(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
INLINE vf v_load_bf16_n(const bf16 *p, int n)
{
    bf16 t[LANES] = {0};
    memcpy(t, p, (size_t)n * sizeof *p);
    return v_load_bf16(t);
}
INLINE vf v_add(vf a, vf b) { return (vf){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
INLINE vf v_sub(vf a, vf b) { return (vf){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
INLINE vf v_mul(vf a, vf b) { return (vf){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
INLINE vf v_div(vf a, vf b) { return (vf){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
INLINE vf v_max(vf a, vf b) { return (vf){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
INLINE vf v_min(vf a, vf b) { return (vf){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
INLINE vf v_fma(vf a, vf b, vf c)
{
    return (vf){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
#define NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
INLINE vf v_round(vf a) { return (vf){_mm256_round_ps(a.lo, NEAREST), _mm256_round_ps(a.hi, NEAREST)}; }
INLINE __m256 exp2i(__m256 n)
{
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
INLINE vf v_exp2i(vf n) { return (vf){exp2i(n.lo), exp2i(n.hi)}; }
INLINE __m256i bf16_bits(__m256 a)
{
    __m256i u = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(r, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), nan);
}
INLINE __m256 round_bf16(__m256 a)
{
    return _mm256_castsi256_ps(_mm256_and_si256(bf16_bits(a), _mm256_set1_epi32((int)0xffff0000)));
}
INLINE vf v_round_bf16(vf a) { return (vf){round_bf16(a.lo), round_bf16(a.hi)}; }
INLINE void v_store_bf16(bf16 *p, vf a)
{
    __m256i both = _mm256_packus_epi32(_mm256_srli_epi32(bf16_bits(a.lo), 16), _mm256_srli_epi32(bf16_bits(a.hi), 16));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(both, 0xd8)); /* undo packus's 128-bit interleave */
}
INLINE void v_store_bf16_n(bf16 *p, vf a, int n)
{
    bf16 t[LANES];
    v_store_bf16(t, a);
    memcpy(p, t, (size_t)n * sizeof *p);
}
INLINE float v_first(vf a) { return _mm256_cvtss_f32(a.lo); }
INLINE __m256 v_fold(vf a) { return _mm256_add_ps(a.lo, a.hi); }
INLINE vf v_window(vf a, vf b, long lo, long hi)
{
    const __m256i low8 = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), high8 = _mm256_add_epi32(low8, _mm256_set1_epi32(8));
    const __m256i from = _mm256_set1_epi32((int)(lo < 0 ? 0 : lo > LANES ? LANES : lo) - 1);
    const __m256i to = _mm256_set1_epi32((int)(hi < 0 ? 0 : hi > LANES ? LANES : hi));
    __m256i in_lo = _mm256_and_si256(_mm256_cmpgt_epi32(low8, from), _mm256_cmpgt_epi32(to, low8));
    __m256i in_hi = _mm256_and_si256(_mm256_cmpgt_epi32(high8, from), _mm256_cmpgt_epi32(to, high8));
    return (vf){_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(in_lo)),
                _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(in_hi))};
}
INLINE unsigned v_equal_mask(vf a, vf b)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ)) |
           (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)) << 8;
}
INLINE vf v_nan_to(vf a, vf b)
{
    return (vf){_mm256_blendv_ps(a.lo, b.lo, _mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q)),
                _mm256_blendv_ps(a.hi, b.hi, _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q))};
}
#endif

INLINE __m128 v_reduce4(vf a, vf b, vf c, vf d) { return reduce4_ps256(v_fold(a), v_fold(b), v_fold(c), v_fold(d)); }
INLINE float v_sum(vf a) { return _mm_cvtss_f32(v_reduce4(a, v_zero(), v_zero(), v_zero())); }
INLINE float v_hmax(vf a)
{
    float t[LANES], m;
    v_store(t, a);
    m = t[0];
    for (int i = 1; i < LANES; i++)
        m = t[i] > m ? t[i] : m;
    return m;
}

/* e^x to about 1 ulp, exactly 1 at 0, NaN in NaN out; x is clamped to [-87, 88], so the result is never 0 or inf. */
INLINE vf v_exp(vf x)
{
    x = v_max(v_set1(-87.0f), v_min(v_set1(88.0f), x)); /* min/max return their second operand for NaN */
    vf n = v_round(v_mul(x, v_set1(1.44269504088896341f)));
    vf r = v_fma(n, v_set1(-0.693359375f), x);
    r = v_fma(n, v_set1(2.12194440e-4f), r);
    vf p = v_fma(v_set1(1.9875691500e-4f), r, v_set1(1.3981999507e-3f));
    p = v_fma(p, r, v_set1(8.3334519073e-3f));
    p = v_fma(p, r, v_set1(4.1665795894e-2f));
    p = v_fma(p, r, v_set1(1.6666665459e-1f));
    p = v_fma(p, r, v_set1(5.0000001201e-1f));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set1(1.0f));
    return v_mul(p, v_exp2i(n));
}
