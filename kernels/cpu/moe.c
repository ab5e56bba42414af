/* Experts: (row, choice) pairs grouped by slot; gate, up and activation | down | weighted sum in ascending expert id. */
#include "int8.h"
#include "norm.h"
#include <limits.h>

#define CHUNK_MAX 64
#define MAX_CHOICES 1024
#define FEWEST_WIDE min_l(WIDEN_FROM, DEQUANTISE_FROM) /* no chunk is widened for fewer rows */

typedef struct {
    int32_t slot, first, count; /* pairs order[first .. first + count) */
} Group;

typedef struct {
    const Table *table;
    Prepare prep;
    long t, k, num_groups, num_pairs, up_chunk, down_chunk;
    int xtype, ytype;
    const Group *groups;
    const int32_t *order; /* pair numbers (row * k + choice) by slot */
    const int32_t *slots, *ids;
    const float *weights;
    const void *residual;
    float *h;     /* [pairs in order, ffn] */
    char *x8, *h8; /* the rows of x and of h rounded, for 4-bit weights; NULL: they meet fp32 rows */
    float *pairs; /* [t * k, hidden] */
    void *y;
    char *wide;
    size_t wide_bytes;
} Args;

static void add_bias(float *row, const void *bias, int type, long i0, long n)
{
    for (long i = 0; i < n; i += LANES) {
        int m = (int)min_l(LANES, n - i);
        if (m == LANES)
            v_store(row + i, v_add(v_load(row + i), load_type(bias, type, i0 + i)));
        else
            v_store_n(row + i, v_add(v_load_n(row + i, m), load_type_n(bias, type, i0 + i, m)), m);
    }
}

INLINE vf activate(const Table *table, vf gate, vf up)
{
    if (table->act == ACT_GPTOSS) {
        /* The limit first: min/max return their second operand for NaN. */
        gate = v_min(v_set1(table->limit), gate);
        up = v_max(v_set1(-table->limit), v_min(v_set1(table->limit), up));
        vf sigmoid = v_div(v_set1(1.0f), v_add(v_set1(1.0f), v_exp(v_mul(gate, v_set1(-table->alpha)))));
        return v_mul(v_add(up, v_set1(1.0f)), v_mul(gate, sigmoid));
    }
    return v_mul(v_div(gate, v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), gate)))), up);
}

/* The weights of one chunk of rows: as they are, or in fp32 when many activation rows will read them. */
typedef struct {
    int type;
    const void *w;
    long ld;
    Rows4 four;
} Weights;

INLINE int is_wide(const Expert *e, long pairs, int rounded)
{
    return e->wtype == INT4 ? !rounded && pairs >= DEQUANTISE_FROM : e->wtype == BF16 && pairs >= WIDEN_FROM;
}

INLINE Weights chunk_weights(const Expert *e, int which, long row, long n, long K, int wide, float *memory)
{
    Weights out = {.type = (int)e->wtype, .ld = e->ld[which]};
    if (e->wtype == INT4) {
        const long groups = (K + e->group - 1) / e->group;
        out.four = (Rows4){(const uint8_t *)e->weight[which] + row * out.ld, (const bf16 *)e->scale[which] + row * groups,
                           out.ld, groups, e->group};
    } else
        out.w = offset(e->weight[which], out.type, row * out.ld);
    if (!wide)
        return out;
    if (e->wtype == INT4)
        dequantise_rows(&out.four, n, K, memory);
    else
        widen_rows(out.w, out.ld, n, K, memory);
    return (Weights){.type = F32, .w = memory, .ld = K};
}

/* Up to RMAX activation rows, as fp32 or rounded. */
typedef struct {
    const float *wide[RMAX];
    const char *rounded[RMAX];
} Rows;

INLINE void weights_dot(const Weights *w, int R, long n, const Rows *x, int rounded, long K, float *out)
{
    if (w->type != INT4)
        rows_dot(R, w->type, w->w, w->ld, n, x->wide, K, out, CHUNK_MAX);
    else if (rounded)
        rows_dot48(R, &w->four, n, x->rounded, K, out, CHUNK_MAX);
    else
        rows_dot4(R, &w->four, n, x->wide, K, out, CHUNK_MAX);
}

/* h = act(x @ gate.T, x @ up.T) of the group's pairs, columns [f0, f1). */
static void up_item(const Args *a, const Group *g, const float *x, long f0, long f1, float *wide)
{
    const Table *table = a->table;
    const Expert *e = &table->experts[g->slot];
    const long D = table->hidden, F = table->ffn, n = f1 - f0;
    float gate[RMAX * CHUNK_MAX], up[RMAX * CHUNK_MAX];
    const int is_rounded = a->x8 != NULL, widened = is_wide(e, g->count, is_rounded);
    const Weights gate_w = chunk_weights(e, 0, f0, n, D, widened, wide);
    const Weights up_w = chunk_weights(e, 1, f0, n, D, widened, wide + n * D);
    for (long p0 = 0; p0 < g->count; p0 += RMAX) {
        int R = (int)min_l(RMAX, g->count - p0);
        Rows rows;
        for (int r = 0; r < R; r++) {
            const long row = a->order[g->first + p0 + r] / a->k;
            rows.wide[r] = x + row * D;
            rows.rounded[r] = is_rounded ? a->x8 + (size_t)row * row8_bytes(D) : NULL;
        }
        weights_dot(&gate_w, R, n, &rows, is_rounded, D, gate);
        weights_dot(&up_w, R, n, &rows, is_rounded, D, up);
        for (int r = 0; r < R; r++) {
            float *gr = gate + r * CHUNK_MAX, *ur = up + r * CHUNK_MAX, *h = a->h + (g->first + p0 + r) * F + f0;
            if (e->bias[0])
                add_bias(gr, e->bias[0], (int)e->btype, f0, n);
            if (e->bias[1])
                add_bias(ur, e->bias[1], (int)e->btype, f0, n);
            for (long i = 0; i < n; i += LANES) {
                int m = (int)min_l(LANES, n - i);
                vf v = m == LANES ? activate(table, v_load(gr + i), v_load(ur + i))
                                  : activate(table, v_load_n(gr + i, m), v_load_n(ur + i, m));
                if (a->xtype == BF16)
                    v = v_round_bf16(v);
                if (m == LANES)
                    v_store(h + i, v);
                else
                    v_store_n(h + i, v, m);
            }
        }
    }
}

/* pairs = h @ down.T of the group's pairs, columns [d0, d1). */
static void down_item(const Args *a, const Group *g, long d0, long d1, float *wide)
{
    const Table *table = a->table;
    const Expert *e = &table->experts[g->slot];
    const long D = table->hidden, F = table->ffn, n = d1 - d0;
    float out[RMAX * CHUNK_MAX];
    const int is_rounded = a->h8 != NULL;
    const Weights w = chunk_weights(e, 2, d0, n, F, is_wide(e, g->count, is_rounded), wide);
    for (long p0 = 0; p0 < g->count; p0 += RMAX) {
        int R = (int)min_l(RMAX, g->count - p0);
        Rows rows;
        for (int r = 0; r < R; r++) {
            const long place = g->first + p0 + r;
            rows.wide[r] = a->h + place * F;
            rows.rounded[r] = is_rounded ? a->h8 + (size_t)place * row8_bytes(F) : NULL;
        }
        weights_dot(&w, R, n, &rows, is_rounded, F, out);
        for (int r = 0; r < R; r++) {
            if (e->bias[2])
                add_bias(out + r * CHUNK_MAX, e->bias[2], (int)e->btype, d0, n);
            memcpy(a->pairs + (long)a->order[g->first + p0 + r] * D + d0, out + r * CHUNK_MAX, (size_t)n * 4);
        }
    }
}

typedef struct {
    const float *pairs, *weights;
    const int32_t *slots, *ids;
    const void *residual;
    void *y;
    long t, k, d;
    int rtype, ytype;
} Combine;

/* y[t, d0:d1] = residual + sum over the row's choices, in ascending expert id, of weight * pair. */
static void combine_item(const Combine *c, long t, long d0, long d1)
{
    int32_t order[MAX_CHOICES];
    long n = 0;
    for (long j = 0; j < c->k; j++) {
        long p = t * c->k + j;
        if ((c->slots && c->slots[p] < 0) || (c->ids && c->ids[p] < 0))
            continue;
        long i = n++;
        for (; c->ids && i > 0 && c->ids[t * c->k + order[i - 1]] > c->ids[p]; i--)
            order[i] = order[i - 1];
        order[i] = (int32_t)j;
    }
    for (long d = d0; d < d1; d += LANES) {
        int m = (int)min_l(LANES, d1 - d);
        vf sum = v_zero();
        for (long i = 0; i < n; i++) {
            long p = t * c->k + order[i];
            const float *pair = c->pairs + p * c->d + d;
            sum = v_fma(v_set1(c->weights ? c->weights[p] : 1.0f), m == LANES ? v_load(pair) : v_load_n(pair, m), sum);
        }
        long at = t * c->d + d;
        if (c->residual)
            sum = v_add(m == LANES ? load_type(c->residual, c->rtype, at) : load_type_n(c->residual, c->rtype, at, m), sum);
        if (m == LANES)
            store_type(c->y, c->ytype, at, sum);
        else
            store_type_n(c->y, c->ytype, at, sum, m);
    }
}

static void combine_items(const Combine *c, Team *team, int queue)
{
    long piece = c->t >= 4 * team->n ? c->d : 512, per_row = (c->d + piece - 1) / piece;
    EACH_ITEM(i, team, queue, c->t * per_row) {
        long d0 = i % per_row * piece;
        combine_item(c, i / per_row, d0, min_l(d0 + piece, c->d));
    }
}

static void round_items(const float *x, long rows, long K, char *out, Team *team, int queue)
{
    if (!out)
        return;
    EACH_ITEM(i, team, queue, rows)
        round_row8(x + i * K, K, out + (size_t)i * row8_bytes(K));
    team_barrier(team);
}

static void moe_body(void *args, Team *team)
{
    const Args *a = args;
    const long D = a->table->hidden, F = a->table->ffn;
    float *wide = (float *)(a->wide + (size_t)team->tid * a->wide_bytes);
    const float *x = prepare(&a->prep, team, 0);
    round_items(x, a->t, D, a->x8, team, 4);
    long per_group = (F + a->up_chunk - 1) / a->up_chunk;
    EACH_ITEM(i, team, 1, a->num_groups * per_group) {
        long f0 = i % per_group * a->up_chunk;
        up_item(a, &a->groups[i / per_group], x, f0, min_l(f0 + a->up_chunk, F), wide);
    }
    team_barrier(team);
    round_items(a->h, a->num_pairs, F, a->h8, team, 5);
    per_group = (D + a->down_chunk - 1) / a->down_chunk;
    EACH_ITEM(i, team, 2, a->num_groups * per_group) {
        long d0 = i % per_group * a->down_chunk;
        down_item(a, &a->groups[i / per_group], d0, min_l(d0 + a->down_chunk, D), wide);
    }
    if (!a->y)
        return;
    team_barrier(team);
    Combine c = {a->pairs, a->weights, a->slots, a->ids, a->residual, a->y, a->t, a->k, D, a->xtype, a->ytype};
    combine_items(&c, team, 3);
}

/* Fills groups, largest first, and order from the slots; returns the number of groups. */
static long group_pairs(const int32_t *slots, long num_pairs, long num_slots, int32_t *start, Group *groups, int32_t *order)
{
    memset(start, 0, (size_t)num_slots * sizeof *start);
    for (long p = 0; p < num_pairs; p++)
        if (!slots || slots[p] >= 0)
            start[slots ? slots[p] : 0]++;
    long num_groups = 0;
    int32_t first = 0;
    for (long s = 0; s < num_slots; s++)
        if (start[s]) {
            groups[num_groups++] = (Group){(int32_t)s, first, start[s]};
            first += start[s];
            start[s] = first - start[s];
        }
    for (long p = 0; p < num_pairs; p++)
        if (!slots || slots[p] >= 0)
            order[start[slots ? slots[p] : 0]++] = (int32_t)p;
    /* The longest work starts first, so that no thread is left with it at the end. */
    for (long i = 1; i < num_groups; i++) {
        Group g = groups[i];
        long j = i;
        for (; j > 0 && groups[j - 1].count < g.count; j--)
            groups[j] = groups[j - 1];
        groups[j] = g;
    }
    return num_groups;
}

static long chunk_for(long total_rows, int n, long widest, long K)
{
    long chunk = min_l(CHUNK_MAX, max_l(8, (total_rows / (n * 4) + 3) & ~3L));
    if (widest >= FEWEST_WIDE) /* the widened chunk must stay in the second-level cache */
        while (chunk > 16 && chunk * K * 4 > (512 << 10))
            chunk /= 2;
    return chunk;
}

int FN(moe)(int threads, const Table *table, const void *x, int xtype, int64_t t, int64_t k, const int32_t *slots, const int32_t *ids,
            const float *weights, const void *residual, float *pairs, void *y, int ytype)
{
    const long P = t * k, D = table->hidden, F = table->ffn, S = table->num_slots;
    if (t == 0)
        return OK;
    int rounded = xtype == BF16 && has_vnni();
    for (long p = 0; p < P; p++) {
        long s = slots ? slots[p] : 0;
        if (s >= S)
            return ERR_SLOT_RANGE;
        if (s >= 0 && !table->experts[s].weight[0])
            return ERR_SLOT_EMPTY;
        rounded = rounded && (s < 0 || table->experts[s].wtype == INT4);
    }
    int n = team_size(threads, 3.0 * (double)P * (double)D * (double)F);
    Args a = {.table = table, .t = t, .k = k, .xtype = xtype, .ytype = ytype, .slots = slots, .ids = ids,
              .weights = weights, .residual = residual, .y = y};
    a.prep = (Prepare){.x = x, .xtype = xtype, .norm = &table->norm, .t = t, .d = D};

    size_t prep_bytes = align64(prepare_bytes(&a.prep, n)), order_bytes = align64((size_t)P * 4);
    size_t start_bytes = align64((size_t)S * 4), group_bytes = align64((size_t)min_l(P, S) * sizeof(Group));
    size_t h_bytes = align64((size_t)(P * F) * 4), pair_bytes = pairs ? 0 : align64((size_t)(P * D) * 4);
    /* Chunks depend on the grouping, so room for the largest is set aside. */
    a.wide_bytes = P >= FEWEST_WIDE ? align64((size_t)(2 * CHUNK_MAX * max_l(D, F)) * 4) : 0;
    size_t x8_bytes = rounded ? (size_t)t * row8_bytes(D) : 0, h8_bytes = rounded ? (size_t)P * row8_bytes(F) : 0;
    char *m = scratch(x8_bytes + h8_bytes + prep_bytes + order_bytes + start_bytes + group_bytes + h_bytes + pair_bytes + a.wide_bytes * (size_t)n);
    if (!m)
        return ERR_MEMORY;
    a.prep.memory = (float *)m, m += prep_bytes;
    int32_t *order = (int32_t *)m, *start = (int32_t *)(m + order_bytes);
    Group *groups = (Group *)(m += order_bytes + start_bytes);
    m += group_bytes;
    a.h = (float *)m, m += h_bytes;
    a.pairs = pairs ? pairs : (float *)m, m += pair_bytes;
    a.wide = m, m += a.wide_bytes * (size_t)n;
    a.x8 = rounded ? m : NULL, a.h8 = rounded ? m + x8_bytes : NULL;
    a.num_groups = group_pairs(slots, P, S, start, groups, order);
    a.order = order, a.groups = groups;
    for (long i = 0; i < a.num_groups; i++)
        a.num_pairs += groups[i].count;
    long widest = a.num_groups ? groups[0].count : 0;
    a.up_chunk = chunk_for(F * a.num_groups, n, widest, 2 * D);
    a.down_chunk = chunk_for(D * a.num_groups, n, widest, F);
    team_run(n, moe_body, &a);
    return OK;
}

static void combine_body(void *args, Team *team) { combine_items(args, team, 0); }

int FN(combine)(int threads, const float *pairs, int64_t t, int64_t k, int64_t d, const int32_t *ids, const float *weights,
                const void *residual, int rtype, void *y, int ytype)
{
    Combine c = {pairs, weights, NULL, ids, residual, y, t, k, d, rtype, ytype};
    team_run(team_size(threads, (double)t * (double)k * (double)d), combine_body, &c);
    return OK;
}
