/* Softmax over all experts, then the k largest weights of each row, ties to the lowest id. */
#include "dot.h"

typedef struct {
    const float *logits;
    long t, e, k;
    int normalize;
    int32_t *ids;
    float *weights;
    float *rows; /* per thread: two rows of e rounded up to LANES */
} Args;

static void topk_row(const Args *a, long t, float *weight, float *key)
{
    const float *logits = a->logits + t * a->e;
    const long E = a->e, padded = (E + LANES - 1) / LANES * LANES;
    float top = -__builtin_inff();
    for (long i = 0; i < E; i++)
        top = logits[i] > top ? logits[i] : top;
    vf sum = v_zero(), finite = v_zero(); /* x - x is 0, or NaN if x is not finite */
    for (long i = 0; i < E; i += LANES) {
        int n = (int)min_l(LANES, E - i);
        vf v = n == LANES ? v_load(logits + i) : v_load_n(logits + i, n);
        finite = v_add(finite, v_sub(v, v));
        v = v_sub(v, v_set1(top));
        v = v_window(v_exp(v), v_zero(), 0, n);
        v_store(weight + i, v);
        sum = v_add(sum, v);
    }
    vf total = v_set1(v_sum(sum) + v_sum(finite));
    for (long i = 0; i < padded; i += LANES) {
        vf w = v_div(v_load(weight + i), total);
        v_store(weight + i, w);
        /* Keys: NaN ranks below every weight (>= 0), chosen ids (-2) and padding (-3) below that. */
        v_store(key + i, v_window(v_nan_to(w, v_set1(-1.0f)), v_set1(-3.0f), 0, E - i));
    }
    int32_t *ids = a->ids + t * a->k;
    float *out = a->weights + t * a->k, chosen = 0.0f;
    for (long j = 0; j < a->k; j++) {
        vf best = v_load(key);
        for (long i = LANES; i < padded; i += LANES)
            best = v_max(best, v_load(key + i));
        best = v_set1(v_hmax(best));
        long i = 0;
        unsigned mask;
        while (!(mask = v_equal_mask(v_load(key + i), best)))
            i += LANES;
        i += __builtin_ctz(mask);
        key[i] = -2.0f;
        ids[j] = (int32_t)i;
        out[j] = weight[i];
        chosen += weight[i];
    }
    if (a->normalize)
        for (long j = 0; j < a->k; j++)
            out[j] /= chosen;
}

static void topk_body(void *args, Team *team)
{
    const Args *a = args;
    const long padded = (a->e + LANES - 1) / LANES * LANES;
    float *weight = a->rows + 2 * padded * team->tid;
    EACH_ITEM(t, team, 0, a->t)
        topk_row(a, t, weight, weight + padded);
}

int FN(topk)(int threads, const float *logits, int64_t t, int64_t e, int64_t k, int normalize, int32_t *ids, float *weights)
{
    int n = team_size(threads, (double)t * (double)e * (double)k);
    Args a = {logits, t, e, k, normalize, ids, weights, scratch((size_t)(n * 2 * (e + LANES)) * 4)};
    if (!a.rows)
        return ERR_MEMORY;
    team_run(n, topk_body, &a);
    return OK;
}
