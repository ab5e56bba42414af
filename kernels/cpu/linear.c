/* y = residual + (norm(x) @ weight.T + bias). */
#include "norm.h"

typedef struct {
    const Linear *lin;
    Prepare prep;
    long t, chunk;
    const void *residual;
    void *y;
    int xtype, ytype;
    char *wide; /* per thread: one chunk of weights as fp32 */
    size_t wide_bytes;
} Args;

#define CHUNK_MAX 64

static void finish_row(const Args *a, const float *sum, long row, long n0, long n1)
{
    const Linear *lin = a->lin;
    for (long i = n0; i < n1; i += LANES) {
        int n = (int)min_l(LANES, n1 - i);
        vf v = n == LANES ? v_load(sum + i - n0) : v_load_n(sum + i - n0, n);
        if (lin->bias)
            v = v_add(v, n == LANES ? v_load(lin->bias + i) : v_load_n(lin->bias + i, n));
        long at = row * lin->n + i;
        if (a->residual)
            v = v_add(v, n == LANES ? load_type(a->residual, a->xtype, at) : load_type_n(a->residual, a->xtype, at, n));
        if (n == LANES)
            store_type(a->y, a->ytype, at, v);
        else
            store_type_n(a->y, a->ytype, at, v, n);
    }
}

static void linear_body(void *args, Team *team)
{
    const Args *a = args;
    const Linear *lin = a->lin;
    const float *x = prepare(&a->prep, team, 0);
    float sums[RMAX * CHUNK_MAX];
    long num_chunks = (lin->n + a->chunk - 1) / a->chunk;
    EACH_ITEM(c, team, 1, num_chunks) {
        long n0 = c * a->chunk, n1 = min_l(n0 + a->chunk, lin->n), ldw = lin->ld;
        const void *w = offset(lin->weight, lin->wtype, n0 * ldw);
        int wtype = lin->wtype;
        if (wtype == BF16 && a->t >= WIDEN_FROM) {
            float *wide = (float *)(a->wide + (size_t)team->tid * a->wide_bytes);
            widen_rows(w, ldw, n1 - n0, lin->k, wide);
            w = wide, wtype = F32, ldw = lin->k;
        }
        for (long r0 = 0; r0 < a->t; r0 += RMAX) {
            int R = (int)min_l(RMAX, a->t - r0);
            const float *rows[RMAX];
            for (int r = 0; r < R; r++)
                rows[r] = x + (r0 + r) * lin->k;
            rows_dot(R, wtype, w, ldw, n1 - n0, rows, lin->k, sums, CHUNK_MAX);
            for (int r = 0; r < R; r++)
                finish_row(a, sums + r * CHUNK_MAX, r0 + r, n0, n1);
        }
    }
}

int FN(linear)(int threads, const Linear *lin, const void *x, int xtype, int64_t t, const void *residual, void *y, int ytype)
{
    if (t == 0)
        return OK;
    int n = team_size(threads, (double)t * (double)lin->n * (double)lin->k);
    Args a = {.lin = lin, .t = t, .residual = residual, .y = y, .xtype = xtype, .ytype = ytype};
    a.prep = (Prepare){.x = x, .xtype = xtype, .norm = &lin->norm, .t = t, .d = lin->k};
    a.chunk = min_l(CHUNK_MAX, max_l(8, (lin->n / (n * 6) + 3) & ~3L));
    size_t prep_bytes = prepare_bytes(&a.prep, n);
    if (lin->wtype == BF16 && t >= WIDEN_FROM)
        a.wide_bytes = align64((size_t)(a.chunk * lin->k) * 4);
    char *memory = scratch(prep_bytes + a.wide_bytes * (size_t)n);
    if (!memory)
        return ERR_MEMORY;
    a.prep.memory = (float *)memory;
    a.wide = memory + prep_bytes;
    team_run(n, linear_body, &a);
    return OK;
}
