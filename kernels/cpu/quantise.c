/* Weights to 4 bits: the scale of each group is the best of a few. */
#include "int4.h"

#define GROUP_MAX 128
#define RATIOS_MAX 32
#define TINY 1e-30f /* groups of nothing larger become zeros: scales and their inverses stay normal numbers */

typedef struct {
    const void *w;
    int wtype, num_ratios;
    long n, k, group;
    const float *inverses; /* of the ratios: scale = largest weight of the group * inverse */
    uint8_t *codes;
    bf16 *scales;
} Args;

INLINE vf quantised(vf w, vf inverse)
{
    return v_max(v_set1(-8.0f), v_min(v_set1(7.0f), v_round(v_mul(w, inverse))));
}

/* Sums of squared errors of a group, which zeros fill up, under four scales. */
INLINE __m128 errors_of(const float *w, long n, const float *scales, const float *inverses)
{
    vf sums[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    for (long i = 0; i < n; i += LANES) {
        const vf value = v_load(w + i);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            vf wrong = v_sub(value, v_mul(quantised(value, v_set1(inverses[j])), v_set1(scales[j])));
            sums[j] = v_fma(wrong, wrong, sums[j]);
        }
    }
    return v_reduce4(sums[0], sums[1], sums[2], sums[3]);
}

/* The scale among the ratios', with its inverse, that fits a group of n values best; the first one of equals. */
static float best_scale(const Args *a, const float *w, long n, float largest, float *inverse)
{
    float scales[RATIOS_MAX], inverses[RATIOS_MAX], errors[RATIOS_MAX];
    for (int i = 0; i < a->num_ratios; i += LANES) {
        const int last = a->num_ratios - i;
        vf ratio = last >= LANES ? v_load(a->inverses + i) : v_window(v_load_n(a->inverses + i, last), v_set1(a->inverses[0]), 0, last);
        vf scale = v_round_bf16(v_mul(v_set1(largest), ratio));
        v_store(scales + i, scale);
        v_store(inverses + i, v_div(v_set1(1.0f), scale));
    }
    int best = 0;
    for (int i = 0; i < a->num_ratios && a->num_ratios > 1; i += 4) {
        _mm_storeu_ps(errors + i, errors_of(w, n, scales + i, inverses + i));
        for (int j = i; j < i + 4; j++)
            best = errors[j] < errors[best] ? j : best;
    }
    *inverse = inverses[best];
    return scales[best];
}

static void load_group(const Args *a, long first, long n, float *w)
{
    for (long i = 0; i < n; i += LANES) {
        const int m = (int)min_l(LANES, n - i);
        v_store(w + i, m == LANES ? load_type(a->w, a->wtype, first + i) : load_type_n(a->w, a->wtype, first + i, m));
    }
}

static void quantise_group(const Args *a, long row, long g)
{
    float w[GROUP_MAX] = {0};
    const long first = g * a->group, n = min_l(a->group, a->k - first), padded = (n + BLOCK4 - 1) / BLOCK4 * BLOCK4;
    load_group(a, row * a->k + first, n, w);
    vf most = v_zero(), least = v_zero();
    for (long i = 0; i < padded; i += LANES)
        most = v_max(most, v_load(w + i)), least = v_min(least, v_load(w + i));
    const float highest = v_hmax(most), lowest = -v_hmax(v_sub(v_zero(), least));
    const float largest = highest >= -lowest ? highest : lowest;
    float scale = 0.0f, inverse = 0.0f;
    if (largest >= TINY || largest <= -TINY)
        scale = best_scale(a, w, padded, largest, &inverse);
    bf16 rounded[LANES];
    v_store_bf16(rounded, v_set1(scale));
    a->scales[row * ((a->k + a->group - 1) / a->group) + g] = rounded[0];
    uint8_t *codes = a->codes + row * ((a->k + BLOCK4 - 1) / BLOCK4 * (BLOCK4 / 2)) + first / 2;
    for (long i = 0; i < padded; i += BLOCK4)
        q_store(codes + i / 2, quantised(v_load(w + i), v_set1(inverse)), quantised(v_load(w + i + LANES), v_set1(inverse)));
}

#define ROWS 8

static void quantise_body(void *args, Team *team)
{
    const Args *a = args;
    const long groups = (a->k + a->group - 1) / a->group;
    EACH_ITEM(i, team, 0, (a->n + ROWS - 1) / ROWS) {
        for (long row = i * ROWS; row < min_l(a->n, (i + 1) * ROWS); row++)
            for (long g = 0; g < groups; g++)
                quantise_group(a, row, g);
    }
}

int FN(quantise)(int threads, const void *w, int wtype, int64_t n, int64_t k, int64_t group, const float *inverses,
                 int num_ratios, void *codes, void *scales)
{
    Args a = {w, wtype, num_ratios, n, k, group, inverses, codes, scales};
    team_run(team_size(threads, (double)n * (double)k * num_ratios), quantise_body, &a);
    return OK;
}
