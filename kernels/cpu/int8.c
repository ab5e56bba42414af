#ifdef VARIANT_AVX512
#pragma GCC target("avx512vnni")
#endif
#include "int8.h"

#ifdef VARIANT_AVX512
#include <math.h>

#define R8MAX 4
#define GROUPS8 32 /* blocks whose factors are worked out at a time */

int has_vnni(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512vnni");
}

INLINE const char *sums_of(const char *row, long blocks) { return row + blocks * BLOCK8; }
INLINE const float *scales_of(const char *row, long blocks) { return (const float *)(row + blocks * 2 * BLOCK8); }

/* Values lie as codes do once 32 bytes of them are spread: the low halves of both blocks of 32, then the high ones. */
void round_row8(const float *x, long K, char *row)
{
    const long blocks = blocks8(K);
    float *scales = (float *)(row + blocks * 2 * BLOCK8);
    for (long b = 0; b < blocks; b++) {
        vf run[4];
        vf most = v_zero();
        __mmask16 wrong = 0;
        for (int i = 0; i < 4; i++) {
            const long k = b * BLOCK8 + i * LANES;
            run[i] = k + LANES <= K ? v_load(x + k) : k < K ? v_load_n(x + k, (int)(K - k)) : v_zero();
            most = v_max(most, _mm512_abs_ps(run[i]));
            wrong |= _mm512_fpclass_ps_mask(run[i], 0x99); /* quiet and signalling NaN, both infinities */
        }
        const float scale = _mm512_reduce_max_ps(most) / 127.0f;
        const vf inverse = v_set1(scale > 0.0f && !wrong ? 1.0f / scale : 0.0f);
        scales[b] = wrong ? NAN : scale;
        for (int i = 0; i < 4; i++) {
            __m512i q = _mm512_cvtps_epi32(wrong ? v_zero() : v_mul(run[i], inverse));
            _mm_storeu_si128((__m128i *)(row + b * BLOCK8 + (i & 1) * 32 + (i >> 1) * LANES), _mm512_cvtsepi32_epi8(q));
        }
        /* A code is q + 8, and counts 8 of each value too much. */
        __m512i values = _mm512_loadu_si512(row + b * BLOCK8);
        __m512i eights = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(8), values);
        _mm512_storeu_si512(row + (blocks + b) * BLOCK8, _mm512_sub_epi32(_mm512_setzero_si512(), eights));
    }
}

/* Scale of the weights times scale of the values: of n blocks from b on, a pair a block for groups of 32. */
INLINE void factors(const int small, const bf16 *w, long groups, long group, const float *x, long b, long n, float *out)
{
    if (small) {
        const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        for (long i = 0; i < 2 * n; i += LANES) {
            const int m = (int)min_l(LANES, groups - 2 * b - i);
            const vf scales = _mm512_permutexvar_ps(twice, v_load_n(x + b + i / 2, (int)min_l(8, n - i / 2)));
            v_store(out + i, v_mul(v_load_bf16_n(w + 2 * b + i, m), scales));
        }
    } else
        for (long i = 0; i < n; i += LANES) {
            const int m = (int)min_l(LANES, n - i);
            vf scales;
            if (group == BLOCK8)
                scales = v_load_bf16_n(w + b + i, m);
            else {
                const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
                scales = _mm512_permutexvar_ps(twice, v_load_bf16_n(w + (b + i) / 2, (m + 1) / 2));
            }
            v_store(out + i, v_mul(scales, v_load_n(x + b + i, m)));
        }
}

/* The 64 codes of 32 bytes. */
INLINE __m512i spread(__m256i bytes)
{
    const __m512i shift = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
    return _mm512_and_si512(_mm512_srlv_epi32(_mm512_broadcast_i64x4(bytes), shift), _mm512_set1_epi8(15));
}

INLINE vf factor_of(const int small, const float *f, long b)
{
    if (!small)
        return v_set1(f[b]);
    const __m512i pattern = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1);
    return _mm512_permutexvar_ps(pattern, _mm512_castps128_ps512(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(f + 2 * b)))));
}

INLINE void tile48(const int R, const int small, const uint8_t *const *codes, const bf16 *const *scales, const Rows4 *w,
                   const char *const *x, long K, float *out, long ldo, long ahead)
{
    const long blocks = blocks8(K), whole = w->ld / 32;
    float f[R8MAX][4][GROUPS8 * 2];
    vf acc[R8MAX][4];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
        acc[r][0] = acc[r][1] = acc[r][2] = acc[r][3] = v_zero();
    for (long b0 = 0; b0 < blocks; b0 += GROUPS8) {
        const long n = min_l(GROUPS8, blocks - b0);
        for (int r = 0; r < R; r++)
            for (int i = 0; i < 4; i++)
                factors(small, scales[i], w->groups, w->group, scales_of(x[r], blocks), b0, n, f[r][i]);
        for (long j = 0; j < n; j++) {
            const long b = b0 + j;
            __m512i c[4];
            if (!(b & 1)) {
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++)
                    _mm_prefetch((const char *)codes[i] + b * 32 + ahead, _MM_HINT_T0);
            }
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                const __m256i *p = (const __m256i *)(codes[i] + b * 32);
                /* Half a block may end the row, and the memory. Zeros meet zeros. */
                c[i] = spread(b < whole ? _mm256_loadu_si256(p) : _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)p)));
            }
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                const __m512i values = _mm512_loadu_si512(x[r] + b * BLOCK8), *start = (const void *)sums_of(x[r], blocks);
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++) {
                    __m512i sum = _mm512_dpbusd_epi32(_mm512_loadu_si512(start + b), c[i], values);
                    acc[r][i] = v_fma(_mm512_cvtepi32_ps(sum), factor_of(small, f[r][i], j), acc[r][i]);
                }
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
        _mm_storeu_ps(out + r * ldo, v_reduce4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]));
}

INLINE void tiles48(const int R, const int small, const Rows4 *w, long nw, const char *const *x, long K, float *out, long ldo)
{
    const long ahead = w->ld * max_l(4, (8192 / w->ld) & ~3L);
    for (long j = 0; j < nw; j += 4) {
        const int n = (int)min_l(4, nw - j);
        const uint8_t *codes[4];
        const bf16 *scales[4];
        for (int i = 0; i < 4; i++) { /* rows that do not exist repeat the last one */
            const long row = j + min_l(i, n - 1);
            codes[i] = w->codes + row * w->ld, scales[i] = w->scales + row * w->groups;
        }
        if (n == 4) {
            tile48(R, small, codes, scales, w, x, K, out + j, ldo, ahead);
            continue;
        }
        float part[R8MAX * 4];
        tile48(R, small, codes, scales, w, x, K, part, 4, 0);
        for (int r = 0; r < R; r++)
            for (int i = 0; i < n; i++)
                out[r * ldo + j + i] = part[r * 4 + i];
    }
}

void rows_dot48(int R, const Rows4 *w, long nw, const char *const *x, long K, float *out, long ldo)
{
    for (int most; R > 0; R -= most, x += most, out += most * ldo) {
        most = R <= R8MAX ? R : R == R8MAX + 1 ? R8MAX - 1 : R8MAX;
        switch (most * 2 + (w->group == BLOCK4)) {
#define CASE(r, small)                                                                                                 \
    case r * 2 + small:                                                                                                \
        tiles48(r, small, w, nw, x, K, out, ldo);                                                                      \
        break;
            CASE(1, 0)
            CASE(2, 0)
            CASE(3, 0)
            CASE(4, 0)
            CASE(1, 1)
            CASE(2, 1)
            CASE(3, 1)
            CASE(4, 1)
#undef CASE
        }
    }
}

#else
int has_vnni(void) { return 0; }
void round_row8(const float *x, long K, char *row) { (void)x, (void)K, (void)row; }
void rows_dot48(int R, const Rows4 *w, long nw, const char *const *x, long K, float *out, long ldo)
{
    (void)R, (void)w, (void)nw, (void)x, (void)K, (void)out, (void)ldo;
}
#endif
