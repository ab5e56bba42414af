#include "norm.h"

void norm_row(const Norm *norm, const void *x, int xtype, long d, float *y)
{
    vf acc[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    long i = 0;
    for (; i + 4 * LANES <= d; i += 4 * LANES)
        for (int j = 0; j < 4; j++) {
            vf v = load_type(x, xtype, i + j * LANES);
            acc[j] = v_fma(v, v, acc[j]);
        }
    for (; i < d; i += LANES) {
        vf v = i + LANES <= d ? load_type(x, xtype, i) : load_type_n(x, xtype, i, (int)(d - i));
        acc[0] = v_fma(v, v, acc[0]);
    }
    float mean = v_sum(v_add(v_add(acc[0], acc[1]), v_add(acc[2], acc[3]))) / (float)d;
    vf scale = v_set1(1.0f / __builtin_sqrtf(mean + norm->eps));
    for (i = 0; i < d; i += LANES) {
        int n = (int)min_l(LANES, d - i);
        vf w = n == LANES ? v_load(norm->weight + i) : v_load_n(norm->weight + i, n);
        vf v = v_mul(n == LANES ? load_type(x, xtype, i) : load_type_n(x, xtype, i, n), scale);
        if (xtype == BF16 && !norm->plus_one)
            v = v_round_bf16(v);
        v = v_mul(v, w);
        if (xtype == BF16)
            v = v_round_bf16(v);
        if (n == LANES)
            v_store(y + i, v);
        else
            v_store_n(y + i, v, n);
    }
}

static void prepare_row(const Prepare *p, long t, float *y)
{
    const void *x = offset(p->x, p->xtype, t * p->d);
    if (p->norm->weight) {
        norm_row(p->norm, x, p->xtype, p->d, y);
        return;
    }
    widen_rows(x, p->d, 1, p->d, y);
}

const float *prepare(const Prepare *p, Team *team, int queue)
{
    if (prepare_nothing(p))
        return p->x;
    if (prepare_alone(p)) {
        float *own = p->memory + (size_t)team->tid * (align64((size_t)(p->t * p->d) * 4) / 4);
        for (long t = 0; t < p->t; t++)
            prepare_row(p, t, own + t * p->d);
        return own;
    }
    EACH_ITEM(t, team, queue, p->t)
        prepare_row(p, t, p->memory + t * p->d);
    team_barrier(team);
    return p->memory;
}

typedef struct {
    const Norm *norm;
    const void *x;
    void *y;
    long t, d;
    int xtype;
    float *rows; /* [n, d] */
} NormArgs;

static void norm_body(void *args, Team *team)
{
    const NormArgs *a = args;
    float *row = a->rows + team->tid * a->d;
    EACH_ITEM(t, team, 0, a->t) {
        norm_row(a->norm, offset(a->x, a->xtype, t * a->d), a->xtype, a->d, row);
        for (long i = 0; i < a->d; i += LANES) {
            int n = (int)min_l(LANES, a->d - i);
            if (n == LANES)
                store_type(a->y, a->xtype, t * a->d + i, v_load(row + i));
            else
                store_type_n(a->y, a->xtype, t * a->d + i, v_load_n(row + i, n), n);
        }
    }
}

int FN(norm)(int threads, const Norm *norm, const void *x, int xtype, int64_t t, int64_t d, void *y)
{
    int n = team_size(threads, (double)t * (double)d);
    NormArgs a = {norm, x, y, t, d, xtype, scratch((size_t)(n * d) * 4)};
    if (!a.rows)
        return ERR_MEMORY;
    team_run(n, norm_body, &a);
    return OK;
}
