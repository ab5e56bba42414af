/* Grouped-query attention over a KV arena read in place.
 *
 * The keys of a row are walked in blocks of BLOCK and splits of SPLIT positions, both aligned to absolute positions
 * of the sequence. Softmax runs online inside a split; splits are merged in ascending order. So a row's result depends
 * on its own position and window only, whichever rows share the tile and however splits are spread over threads.
 */
#include "attend.h"

#define SPLIT 512
#define MAX_SPAN 64
#define TILE_ROWS 48      /* query rows (rows x heads of a group) that share one pass over the keys */

typedef struct {
    int32_t first, count; /* rows of one sequence, consecutive positions */
} Run;

typedef struct {
    const Attention *att;
    const void *qkv;
    int xtype;
    long t, group; /* query heads that share a kv head */
    const float *cos, *sin;
    const int64_t *kv_start, *pos;
    void *k_cache, *v_cache, *out;
    const Run *runs;
    long num_runs;
    int alone;      /* every sequence of the call fits one run: no row reads what another item writes */
    long max_split; /* > 0: splits are separate items, `partial` holds their results */
    float *q;       /* [t, num_heads, head_dim], scaled */
    float *partial; /* [t, num_heads, max_split, 2 + head_dim] */
    char *work;     /* per thread */
    long span, work_rows; /* kv heads of one item, and the query rows of each */
    size_t work_bytes;
} Args;

static long first_key(const Args *a, long t) { return a->att->window ? max_l(0, a->pos[t] - a->att->window + 1) : 0; }

typedef struct { /* one thread's buffers for a tile of query rows */
    float *score, *acc, *total, *top, *sum, *total_top, *total_sum;
    const float **rows;
} Work;

static size_t work_layout(char *m, long rows, long d, Work *w)
{
    size_t at = 0;
#define TAKE(field, type, n)                                                                                           \
    w->field = (type)(m + at);                                                                                         \
    at += align64((size_t)(n) * sizeof *w->field);
    TAKE(score, float *, rows * BLOCK)
    TAKE(acc, float *, rows * d)
    TAKE(total, float *, rows * d)
    TAKE(top, float *, rows)
    TAKE(sum, float *, rows)
    TAKE(total_top, float *, rows)
    TAKE(total_sum, float *, rows)
    TAKE(rows, const float **, rows)
#undef TAKE
    return at;
}

/* Normalises and rotates one head: x of xtype to y in fp32. */
static void head_in(const Args *a, const Norm *norm, const void *x, long t, float *y)
{
    const long d = a->att->head_dim, half = a->att->rotary_dim / 2;
    if (norm->weight)
        norm_row(norm, x, a->xtype, d, y);
    else if (a->xtype == BF16)
        widen_rows(x, d, 1, d, y);
    else
        memcpy(y, x, (size_t)d * 4);
    if (!a->cos)
        return;
    rotate(y, a->cos + t * half, a->sin + t * half, half);
}

/* Queries of kv head g into scratch, its key and value into the arena. */
static void row_in(const Args *a, long t, long g)
{
    const Attention *att = a->att;
    const long d = att->head_dim, H = att->num_heads, G = a->group, kv = att->num_kv_heads;
    const void *row = offset(a->qkv, a->xtype, t * (H + 2 * kv) * d);
    for (long h = g * G; h < (g + 1) * G; h++) {
        float *q = a->q + (t * H + h) * d;
        head_in(a, &att->q_norm, offset(row, a->xtype, h * d), t, q);
        for (long i = 0; i < d; i++)
            q[i] *= att->scale;
    }
    const long at = ((a->kv_start[t] + a->pos[t]) * kv + g) * d;
    float key[512];
    head_in(a, &att->k_norm, offset(row, a->xtype, (H + g) * d), t, key);
    for (long i = 0; i < d; i += LANES) {
        int n = (int)min_l(LANES, d - i);
        if (n == LANES)
            store_type(a->k_cache, a->xtype, at + i, v_load(key + i));
        else
            store_type_n(a->k_cache, a->xtype, at + i, v_load_n(key + i, n), n);
    }
    memcpy((char *)a->v_cache + (size_t)at * type_size(a->xtype), offset(row, a->xtype, (H + kv + g) * d),
           (size_t)d * type_size(a->xtype));
}

/* Keys [j0, j1) of one block (absolute positions) for the tile's rows: row i sees [low_i, pos_i]. */
static void block_step(const Args *a, Work *w, long rows, long t0, long g, long j0, long j1)
{
    const Attention *att = a->att;
    const long d = att->head_dim, kv = att->num_kv_heads, base = j0 - j0 % BLOCK, G = a->group;
    const long at = ((a->kv_start[t0] + j0) * kv + g) * d;
    for (long r = 0; r < rows; r += RMAX)
        rows_dot((int)min_l(RMAX, rows - r), a->xtype, offset(a->k_cache, a->xtype, at), kv * d, j1 - j0, w->rows + r, d,
                 w->score + r * BLOCK + (j0 - base), BLOCK);
    for (long r = 0; r < rows; r++) {
        const long pos = a->pos[t0 + r / G], low = att->window ? max_l(0, pos - att->window + 1) : 0;
        const long from = max_l(low, j0) - base, to = min_l(pos + 1, j1) - base;
        float *score = w->score + r * BLOCK;
        if (from >= to) { /* no key of this block is the row's: a weight of zero for each */
            memset(score, 0, BLOCK * sizeof *score);
            continue;
        }
        float keep = softmax_block(score, from, to, &w->top[r], &w->sum[r]);
        scale_row(w->acc + r * d, keep, d);
    }
    for (long r = 0; r < rows; r += RMAX)
        pv((int)min_l(RMAX, rows - r), a->xtype, offset(a->v_cache, a->xtype, at), kv * d, j1 - j0,
           w->score + r * BLOCK + (j0 - base), w->acc + r * d, d);
}

/* Softmax states (top, sum, acc) of one split, for kv heads [g0, g1). Heads take turns at each block of keys: those lie
 * side by side in the arena, so memory is read in order. */
static void split_step(const Args *a, Work *w, long rows, long t0, long g0, long g1, long j0, long j1)
{
    for (long g = g0; g < g1; g++) {
        memset(w[g - g0].acc, 0, (size_t)(rows * a->att->head_dim) * 4);
        for (long r = 0; r < rows; r++)
            w[g - g0].top[r] = LOW, w[g - g0].sum[r] = 0.0f;
    }
    for (long j = j0; j < j1; j = min_l(j1, (j / BLOCK + 1) * BLOCK))
        for (long g = g0; g < g1; g++)
            block_step(a, &w[g - g0], rows, t0, g, j, min_l(j1, (j / BLOCK + 1) * BLOCK));
}

/* total <- total + one later split. */
static void merge(float *top, float *sum, float *acc, float split_top, float split_sum, const float *split_acc, long d)
{
    float best = split_top > *top ? split_top : *top, keep = exp1(*top - best), add = exp1(split_top - best);
    if (*sum == 0.0f) /* nothing yet: take the split as it is */
        keep = 0.0f, add = 1.0f, best = split_top;
    else if (split_sum == 0.0f)
        return;
    *top = best;
    *sum = *sum * keep + split_sum * add;
    for (long i = 0; i < d; i += LANES) {
        int n = (int)min_l(LANES, d - i);
        if (n == LANES)
            v_store(acc + i, v_fma(v_load(split_acc + i), v_set1(add), v_mul(v_load(acc + i), v_set1(keep))));
        else
            v_store_n(acc + i, v_fma(v_load_n(split_acc + i, n), v_set1(add), v_mul(v_load_n(acc + i, n), v_set1(keep))), n);
    }
}

static void row_out(const Args *a, long t, long h, float top, float sum, const float *acc)
{
    const long d = a->att->head_dim, at = (t * a->att->num_heads + h) * d;
    float scale = 1.0f;
    if (a->att->sinks) {
        float sink = a->att->sinks[h], best = sink > top ? sink : top;
        scale = exp1(top - best);
        sum = sum * scale + exp1(sink - best);
    }
    vf by = v_set1(scale / sum);
    for (long i = 0; i < d; i += LANES) {
        int n = (int)min_l(LANES, d - i);
        if (n == LANES)
            store_type(a->out, a->xtype, at + i, v_mul(v_load(acc + i), by));
        else
            store_type_n(a->out, a->xtype, at + i, v_mul(v_load_n(acc + i, n), by), n);
    }
}

/* The states of split s of a run go into the totals, or to where merge_item finds them. */
static void keep_split(const Args *a, Work *w, const Run *run, long g, long s, int apart)
{
    const long G = a->group, d = a->att->head_dim, H = a->att->num_heads;
    for (long r = 0; r < run->count * G; r++) {
        if (!apart) {
            merge(&w->total_top[r], &w->total_sum[r], w->total + r * d, w->top[r], w->sum[r], w->acc + r * d, d);
            continue;
        }
        const long t = run->first + r / G, own = s - first_key(a, t) / SPLIT; /* a later row's window may start later */
        if (own < 0 || s > a->pos[t] / SPLIT)
            continue;
        float *part = a->partial + ((t * H + g * G + r % G) * a->max_split + own) * (2 + d);
        part[0] = w->top[r], part[1] = w->sum[r];
        memcpy(part + 2, w->acc + r * d, (size_t)d * 4);
    }
}

/* One run of rows, kv heads [g0, g1): all splits, or only number `only`, counted from the first one. */
static void run_item(const Args *a, Work *w, const Run *run, long g0, long g1, long only)
{
    const long G = a->group, d = a->att->head_dim, H = a->att->num_heads, rows = run->count * G;
    const long t0 = run->first, last = t0 + run->count - 1, start = first_key(a, t0), end = a->pos[last] + 1;
    for (long g = g0; g < g1; g++) {
        for (long r = 0; r < rows; r++) {
            w[g - g0].rows[r] = a->q + ((t0 + r / G) * H + g * G + r % G) * d;
            w[g - g0].total_top[r] = LOW, w[g - g0].total_sum[r] = 0.0f;
        }
        memset(w[g - g0].total, 0, (size_t)(rows * d) * 4);
    }
    for (long s = start / SPLIT; s * SPLIT < end; s++) {
        if (only >= 0 && s - start / SPLIT != only)
            continue;
        split_step(a, w, rows, t0, g0, g1, max_l(start, s * SPLIT), min_l(end, (s + 1) * SPLIT));
        for (long g = g0; g < g1; g++)
            keep_split(a, &w[g - g0], run, g, s, only >= 0);
    }
    for (long i = 0; only < 0 && i < (g1 - g0) * rows; i++) {
        const long r = i % rows, g = g0 + i / rows;
        const Work *of = &w[g - g0];
        row_out(a, t0 + r / G, g * G + r % G, of->total_top[r], of->total_sum[r], of->total + r * d);
    }
}

/* Merges the separately computed splits of one row and head. */
static void merge_item(const Args *a, Work *w, long t, long h)
{
    const long d = a->att->head_dim, num = a->pos[t] / SPLIT - first_key(a, t) / SPLIT + 1;
    float top = LOW, sum = 0.0f;
    memset(w->total, 0, (size_t)d * 4);
    for (long s = 0; s < num; s++) {
        const float *part = a->partial + ((t * a->att->num_heads + h) * a->max_split + s) * (2 + d);
        merge(&top, &sum, w->total, part[0], part[1], part + 2, d);
    }
    row_out(a, t, h, top, sum, w->total);
}

static void attention_body(void *args, Team *team)
{
    const Args *a = args;
    const long kv = a->att->num_kv_heads, H = a->att->num_heads;
    Work w[MAX_SPAN];
    char *memory = a->work + (size_t)team->tid * a->work_bytes;
    for (long i = 0; i < a->span; i++)
        memory += work_layout(memory, a->work_rows, a->att->head_dim, &w[i]);
    if (!a->alone) {
        EACH_ITEM(i, team, 0, a->t)
            for (long g = 0; g < kv; g++)
                row_in(a, i, g);
        team_barrier(team);
    }
    /* The rows of a run may start their windows in two neighbouring splits: one more item than a row has. */
    const long per_span = a->max_split ? a->max_split + 1 : 1, per_run = kv / a->span * per_span;
    EACH_ITEM(i, team, 1, a->num_runs * per_run) {
        /* From the last run, whose context is the longest of its sequence. */
        const Run *run = &a->runs[a->num_runs - 1 - i / per_run];
        const long g0 = i % per_run / per_span * a->span, g1 = g0 + a->span;
        for (long t = run->first; a->alone && t < run->first + run->count; t++)
            for (long g = g0; g < g1; g++)
                row_in(a, t, g);
        run_item(a, w, run, g0, g1, a->max_split ? i % per_span : -1);
    }
    if (!a->max_split)
        return;
    team_barrier(team);
    EACH_ITEM(i, team, 2, a->t * H)
        merge_item(a, w, i / H, i % H);
}

int FN(attention)(int threads, const Attention *att, const void *qkv, int xtype, int64_t t, const float *cos, const float *sin,
                  const int64_t *kv_start, const int64_t *pos, void *k_cache, void *v_cache, void *out)
{
    if (t == 0)
        return OK;
    const long H = att->num_heads, d = att->head_dim, G = H / att->num_kv_heads, kv = att->num_kv_heads;
    Args a = {.att = att, .qkv = qkv, .xtype = xtype, .t = t, .group = G, .cos = att->rotary_dim ? cos : NULL, .sin = sin,
              .kv_start = kv_start, .pos = pos, .k_cache = k_cache, .v_cache = v_cache, .out = out};
    double keys = 0;
    long max_split = 1;
    for (long r = 0; r < t; r++) {
        const long low = first_key(&a, r);
        keys += (double)(pos[r] + 1 - low);
        max_split = max_l(max_split, pos[r] / SPLIT - low / SPLIT + 1);
    }
    int n = team_size(threads, (keys + 40.0 * (double)t) * (double)(2 * H * d));
    const int few = n > 1 && max_split > 1 && t * kv < 8 * n;
    a.max_split = few ? max_split : 0;
    a.alone = !few;

    size_t runs_bytes = align64((size_t)t * sizeof(Run)), q_bytes = align64((size_t)(t * H * d) * 4);
    size_t partial_bytes = few ? align64((size_t)(t * H * max_split * (2 + d)) * 4) : 0;
    const long run_rows = max_l(1, TILE_ROWS / G);
    Work unused;
    /* One row a run: its heads fit one item's buffers, if enough items remain for the threads. */
    const int wide = (n == 1 || (few ? max_split : 1) * t >= 2 * n) && kv <= MAX_SPAN;
    size_t work_bytes = max_l((long)work_layout(NULL, max_l(TILE_ROWS, G), d, &unused),
                              wide ? kv * (long)work_layout(NULL, G, d, &unused) : 0);
    char *m = scratch(runs_bytes + q_bytes + partial_bytes + work_bytes * (size_t)n);
    if (!m)
        return ERR_MEMORY;
    Run *runs = (Run *)m;
    a.runs = runs, a.q = (float *)(m + runs_bytes), a.partial = (float *)(m + runs_bytes + q_bytes);
    a.work = m + runs_bytes + q_bytes + partial_bytes, a.work_bytes = work_bytes;
    for (long r = 0; r < t; r++) {
        int follows = r > 0 && kv_start[r] == kv_start[r - 1] && pos[r] == pos[r - 1] + 1;
        if (follows && runs[a.num_runs - 1].count < run_rows) {
            runs[a.num_runs - 1].count++;
            continue;
        }
        if (follows)
            a.alone = 0;
        runs[a.num_runs++] = (Run){(int32_t)r, 1};
    }
    a.span = wide && a.num_runs == t ? kv : 1;
    a.work_rows = a.span > 1 ? G : max_l(TILE_ROWS, G);
    team_run(n, attention_body, &a);
    return OK;
}
