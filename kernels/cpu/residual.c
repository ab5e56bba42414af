/* Rows of bf16 from their 4-bit form and what it does not know of them (the stored form is described in residual.py). */
#include "int4.h"

#define ESCAPE 0x80 /* in residual.py */

typedef struct {
    const uint8_t *in, *end;
    uint16_t sum; /* of all patterns written */
} Stream;

/* The sixteen patterns that codes stand for under a scale; half the scale, without its sign, for code 8. */
INLINE void patterns(bf16 scale, uint16_t *table)
{
    static const float factors[LANES] = {-8, -7, -6, -5, -4, -3, -2, -1, 0.5, 1, 2, 3, 4, 5, 6, 7};
    uint32_t bits[LANES];
    v_store((float *)bits, v_mul(v_set1(scale_of(scale)), v_load(factors)));
    for (int i = 0; i < LANES; i++)
        table[i] = (uint16_t)(bits[i] >> 16);
    table[8] &= 0x7fff;
}

/* Sixteen columns; `codes` in the low halves of bytes. Escapes are not in yet. */
INLINE __m256i known(__m128i codes, __m128i table_low, __m128i table_high, __m128i bytes)
{
    const __m128i low = _mm_shuffle_epi8(table_low, codes), high = _mm_shuffle_epi8(table_high, codes);
    const __m256i base = _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high));
    const __m256i b = _mm256_cvtepi8_epi16(bytes);
    const __m256i zero = _mm256_cvtepi8_epi16(_mm_cmpeq_epi8(codes, _mm_set1_epi8(8)));
    const __m256i below = _mm256_sub_epi16(base, _mm256_and_si256(b, _mm256_set1_epi16(0x7f)));
    const __m256i small = _mm256_or_si256(below, _mm256_and_si256(b, _mm256_set1_epi16((short)0x8000)));
    return _mm256_blendv_epi8(_mm256_add_epi16(base, b), small, zero);
}

/* One row, with nothing above AVX2. The caller has made sure of K bytes. */
static int row_plain(Stream *s, const uint8_t *codes, const bf16 *scales, long k, long group, uint16_t *out)
{
    static const int16_t first[2 * LANES] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    const uint8_t *bytes = s->in, *escapes = s->in + k;
    __m128i table_low = _mm_setzero_si128(), table_high = table_low;
    __m256i sum = _mm256_setzero_si256();
    for (long j = 0; j < k; j += LANES) {
        if (j % group == 0) {
            uint16_t table[LANES];
            patterns(scales[j / group], table);
            const __m128i even = _mm_loadu_si128((__m128i *)table), odd = _mm_loadu_si128((__m128i *)(table + 8));
            const __m128i mask = _mm_set1_epi16(0xff);
            table_low = _mm_packus_epi16(_mm_and_si128(even, mask), _mm_and_si128(odd, mask));
            table_high = _mm_packus_epi16(_mm_srli_epi16(even, 8), _mm_srli_epi16(odd, 8));
        }
        const int n = (int)min_l(LANES, k - j);
        uint16_t part[LANES], *whole = n == LANES ? out + j : part;
        __m128i r;
        if (n == LANES) {
            r = _mm_loadu_si128((const __m128i *)(bytes + j));
        } else {
            uint8_t few[LANES] = {0};
            memcpy(few, bytes + j, (size_t)n);
            r = _mm_loadu_si128((__m128i *)few);
        }
        const __m128i both = _mm_loadu_si128((const __m128i *)(codes + j / BLOCK4 * (BLOCK4 / 2)));
        const __m128i half = j % BLOCK4 ? _mm_srli_epi16(both, 4) : both;
        const __m256i v = known(_mm_and_si128(half, _mm_set1_epi8(15)), table_low, table_high, r);
        _mm256_storeu_si256((__m256i *)whole, v);
        const __m128i listed = _mm_cmpeq_epi8(r, _mm_set1_epi8((char)ESCAPE));
        for (unsigned left = (unsigned)_mm_movemask_epi8(listed); left; left &= left - 1, escapes += 2) {
            uint16_t pattern;
            if (s->end - escapes < 2)
                return ERR_DAMAGED;
            memcpy(&pattern, escapes, 2);
            whole[__builtin_ctz(left)] = pattern;
            s->sum = (uint16_t)(s->sum + pattern);
        }
        if (n < LANES)
            memcpy(out + j, part, (size_t)n * 2);
        const __m256i wanted = _mm256_loadu_si256((const __m256i *)(n < LANES ? first + LANES - n : first));
        sum = _mm256_add_epi16(sum, _mm256_and_si256(wanted, _mm256_andnot_si256(_mm256_cvtepi8_epi16(listed), v)));
    }
    uint16_t lanes[LANES];
    _mm256_storeu_si256((__m256i *)lanes, sum);
    for (int i = 0; i < LANES; i++)
        s->sum = (uint16_t)(s->sum + lanes[i]);
    s->in = escapes;
    return OK;
}

#ifdef VARIANT_AVX512
#define EXPAND __attribute__((target("avx512vbmi2")))

/* As row_plain. `aligned`: the row begins at a multiple of 64 bytes, and is written past the caches. */
EXPAND static int row_expand(Stream *s, const uint8_t *codes, const bf16 *scales, long k, long group, uint16_t *out,
                             int aligned)
{
    const __m512 factors = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0.5, 1, 2, 3, 4, 5, 6, 7);
    const __m512i shifts = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
    const __m512i fifteen = _mm512_set1_epi16(15), eight = _mm512_set1_epi16(8), seven_bits = _mm512_set1_epi16(0x7f);
    const __m512i sign = _mm512_set1_epi16((short)0x8000);
    const __m256i no_sign = _mm256_mask_set1_epi16(_mm256_set1_epi16(-1), 1 << 8, 0x7fff);
    const uint8_t *bytes = s->in, *escapes = s->in + k;
    __m512i table = _mm512_setzero_si512(), sum = table;
    for (long j = 0; j < k; j += BLOCK4) {
        if (j % group == 0) {
            const __m512i bits = _mm512_castps_si512(_mm512_mul_ps(factors, _mm512_set1_ps(scale_of(scales[j / group]))));
            table = _mm512_broadcast_i64x4(_mm256_and_si256(_mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)), no_sign));
        }
        const __mmask32 here = k - j >= BLOCK4 ? 0xffffffffu : (1u << (k - j)) - 1;
        const __m256i r = _mm256_maskz_loadu_epi8(here, bytes + j);
        const __m256i both = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(codes + j / 2)));
        const __m512i code = _mm512_and_si512(_mm512_srlv_epi16(_mm512_broadcast_i64x4(both), shifts), fifteen);
        const __m512i base = _mm512_permutexvar_epi16(code, table), b = _mm512_cvtepi8_epi16(r);
        const __mmask32 zero = _mm512_cmpeq_epi16_mask(code, eight);
        __m512i v = _mm512_mask_sub_epi16(_mm512_add_epi16(base, b), zero, base, _mm512_and_si512(b, seven_bits));
        v = _mm512_ternarylogic_epi64(v, b, _mm512_maskz_mov_epi16(zero, sign), 0xf8); /* v | (b & sign) */
        const __mmask32 escaped = _mm256_cmpeq_epi8_mask(r, _mm256_set1_epi8((char)ESCAPE));
        const int count = __builtin_popcount(escaped);
        if (2 * count > s->end - escapes)
            return ERR_DAMAGED;
        const __m512i listed = _mm512_maskz_loadu_epi16((__mmask32)((1ull << count) - 1), escapes);
        v = _mm512_mask_expand_epi16(v, escaped, listed);
        escapes += 2 * count;
        sum = _mm512_add_epi16(sum, _mm512_maskz_mov_epi16(here, v));
        if (here != 0xffffffffu)
            _mm512_mask_storeu_epi16(out + j, here, v);
        else if (aligned)
            _mm512_stream_si512((__m512i *)(out + j), v);
        else
            _mm512_storeu_si512(out + j, v);
    }
    uint16_t lanes[2 * LANES];
    _mm512_storeu_si512(lanes, sum);
    for (int i = 0; i < 2 * LANES; i++)
        s->sum = (uint16_t)(s->sum + lanes[i]);
    s->in = escapes;
    return OK;
}

static int has_expand(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512vbmi2");
}
#endif

/* On the calling thread alone, in order, so that `out` may lie over the part of `in` that has been read (residual.py
   says how far before it). `used` gets the bytes read, and the sum of the patterns written modulo 2^16. */
int FN(residual)(int threads, const void *in, int64_t nbytes, const void *codes, int64_t ld, const void *scales, int64_t n,
                 int64_t k, int64_t group, void *out, int64_t *used)
{
    (void)threads;
    Stream s = {in, (const uint8_t *)in + nbytes, 0};
    const long groups = (k + group - 1) / group;
#ifdef VARIANT_AVX512
    const int expand = has_expand();
#endif
    for (long row = 0; row < n; row++) {
        const uint8_t *row_codes = (const uint8_t *)codes + row * ld;
        const bf16 *row_scales = (const bf16 *)scales + row * groups;
        uint16_t *row_out = (uint16_t *)out + row * k;
        if (s.end - s.in < k)
            return ERR_DAMAGED;
#ifdef VARIANT_AVX512
        const int aligned = ((uintptr_t)row_out & 63) == 0;
        int code = expand ? row_expand(&s, row_codes, row_scales, k, group, row_out, aligned)
                          : row_plain(&s, row_codes, row_scales, k, group, row_out);
#else
        int code = row_plain(&s, row_codes, row_scales, k, group, row_out);
#endif
        if (code != OK)
            return code;
    }
    _mm_sfence();
    used[0] = s.in - (const uint8_t *)in, used[1] = s.sum;
    return OK;
}

/* The other way round: `out` has room for 3 bytes a weight and 2 more, `row_bytes` [n] how many for each row, `used` as above. */
int FN(residual_of)(int threads, const void *weights, const void *codes, int64_t ld, const void *scales, int64_t n, int64_t k,
                    int64_t group, void *out, int64_t *row_bytes, int64_t *used)
{
    (void)threads;
    const long groups = (k + group - 1) / group;
    uint8_t *next = out;
    uint16_t sum = 0;
    for (long row = 0; row < n; row++) {
        const uint16_t *w = (const uint16_t *)weights + row * k;
        const uint8_t *row_codes = (const uint8_t *)codes + row * ld;
        const bf16 *row_scales = (const bf16 *)scales + row * groups;
        uint8_t *bytes = next, *escapes = next + k;
        uint16_t table[LANES];
        for (long j = 0; j < k; j++) {
            if (j % group == 0)
                patterns(row_scales[j / group], table);
            const uint8_t both = row_codes[j / BLOCK4 * (BLOCK4 / 2) + j % (BLOCK4 / 2)];
            const int code = j % BLOCK4 < BLOCK4 / 2 ? both & 15 : both >> 4;
            const int above = (int16_t)(w[j] - table[code]), below = table[code] - (w[j] & 0x7fff);
            const int byte = code == 8 ? below | (w[j] >> 8 & 0x80) : above & 0xff;
            const int fits = code == 8 ? below >= 0 && below <= 127 : above >= -127 && above <= 127;
            const int listed = !fits || byte == ESCAPE;
            bytes[j] = (uint8_t)(listed ? ESCAPE : byte);
            memcpy(escapes, w + j, 2); /* stays if it is listed */
            escapes += 2 * listed;
            sum = (uint16_t)(sum + w[j]);
        }
        row_bytes[row] = escapes - next;
        next = escapes;
    }
    used[0] = next - (uint8_t *)out, used[1] = sum;
    return OK;
}
