/* Weights to 4 bits: the scale of each group is the best of a few. */
#include "int4.h"
#include <math.h>

#define GROUP_MAX 128

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

static bf16 rounded(float a)
{
    bf16 bits[LANES];
    v_store_bf16(bits, v_set1(a));
    return bits[0];
}

/* Sum of squared errors of a group, which zeros fill up, under one scale. */
static float error_of(const float *w, long n, float scale)
{
    const vf inverse = v_set1(scale == 0.0f ? 0.0f : 1.0f / scale), s = v_set1(scale);
    vf sum = v_zero();
    for (long i = 0; i < n; i += LANES) {
        vf value = v_load(w + i), wrong = v_sub(value, v_mul(quantised(value, inverse), s));
        sum = v_fma(wrong, wrong, sum);
    }
    return v_sum(sum);
}

static void quantise_group(const Args *a, long row, long g)
{
    float w[GROUP_MAX], most = -INFINITY, least = INFINITY;
    const long first = g * a->group, n = min_l(a->group, a->k - first), padded = (n + BLOCK4 - 1) / BLOCK4 * BLOCK4;
    for (long i = 0; i < n; i++) {
        const long at = row * a->k + first + i;
        w[i] = a->wtype == BF16 ? scale_of(((const bf16 *)a->w)[at]) : ((const float *)a->w)[at];
        most = w[i] > most ? w[i] : most;
        least = w[i] < least ? w[i] : least;
    }
    for (long i = n; i < padded; i++)
        w[i] = 0.0f;
    const float largest = most >= -least ? most : least;
    bf16 best = rounded(largest * a->inverses[0]);
    float best_error = a->num_ratios > 1 ? error_of(w, padded, scale_of(best)) : 0.0f;
    for (int i = 1; i < a->num_ratios; i++) {
        const bf16 scale = rounded(largest * a->inverses[i]);
        const float error = error_of(w, padded, scale_of(scale));
        if (error < best_error)
            best = scale, best_error = error;
    }
    const float scale = scale_of(best);
    const vf inverse = v_set1(scale == 0.0f ? 0.0f : 1.0f / scale);
    a->scales[row * ((a->k + a->group - 1) / a->group) + g] = best;
    uint8_t *codes = a->codes + row * ((a->k + BLOCK4 - 1) / BLOCK4 * (BLOCK4 / 2)) + first / 2;
    for (long i = 0; i < padded; i += BLOCK4)
        q_store(codes + i / 2, quantised(v_load(w + i), inverse), quantised(v_load(w + i + LANES), inverse));
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
