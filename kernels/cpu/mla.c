/* Multi-head latent attention in the absorbed form, over latents read in place.
 *
 * A head's query is carried into the latent space (key_up), scores the cached latents and rotated keys, and the mean
 * latent is carried to the value space (value_up). Every row takes this one path, its keys walked in blocks of BLOCK
 * from position 0 with an online softmax, so a row's result depends on its own context only.
 */
#include "attend.h"

#define SLAB_BYTES ((long)16 << 20) /* queries in latent space held at a time */

typedef struct {
    const Mla *mla;
    const void *q, *kv;
    int xtype;
    long t0, t1; /* rows of this slab */
    const float *cos, *sin;
    const int64_t *kv_start, *pos;
    void *latents, *keys, *out;
    float *q_latent; /* [t1 - t0, num_heads, latent]: scaled queries, then mean latents */
    float *q_rope;   /* [t1 - t0, num_heads, rope], scaled */
    char *work;      /* per thread */
    size_t work_bytes;
} Args;

typedef struct {
    float *acc;   /* [RMAX, latent] */
    float *rows;  /* [RMAX, max(nope, value)] */
    float *score; /* [RMAX, BLOCK] */
    float *extra; /* [RMAX, BLOCK] */
} Work;

static size_t work_layout(char *m, const Mla *mla, Work *w)
{
    size_t at = 0;
#define TAKE(field, n)                                                                                                 \
    w->field = (float *)(m + at);                                                                                      \
    at += align64((size_t)(n) * 4);
    TAKE(acc, RMAX * max_l(mla->latent, mla->rope))
    TAKE(rows, RMAX * max_l(mla->nope, mla->value))
    TAKE(score, RMAX * BLOCK)
    TAKE(extra, RMAX * BLOCK)
#undef TAKE
    return at;
}

/* y[0:n] = x[0:n] * by, of xtype to fp32. */
static void widen_scaled(const void *x, int xtype, long n, float by, float *y)
{
    vf scale = v_set1(by);
    for (long i = 0; i < n; i += LANES) {
        int m = (int)min_l(LANES, n - i);
        if (m == LANES)
            v_store(y + i, v_mul(load_type(x, xtype, i), scale));
        else
            v_store_n(y + i, v_mul(load_type_n(x, xtype, i, m), scale), m);
    }
}

static void narrow(const float *x, long n, int ytype, void *y)
{
    for (long i = 0; i < n; i += LANES) {
        int m = (int)min_l(LANES, n - i);
        if (m == LANES)
            store_type(y, ytype, i, v_load(x + i));
        else
            store_type_n(y, ytype, i, v_load_n(x + i, m), m);
    }
}

/* The row's normalised latent and rotated key into the arena. */
static void cache_row(const Args *a, Work *w, long t)
{
    const Mla *m = a->mla;
    const long at = a->kv_start[t] + a->pos[t], half = m->rope / 2;
    const void *row = offset(a->kv, a->xtype, t * (m->latent + m->rope));
    norm_row(&m->norm, row, a->xtype, m->latent, w->acc);
    narrow(w->acc, m->latent, a->xtype, (char *)a->latents + (size_t)(at * m->latent) * type_size(a->xtype));
    widen_scaled(offset(row, a->xtype, m->latent), a->xtype, m->rope, 1.0f, w->acc);
    rotate(w->acc, a->cos + t * half, a->sin + t * half, half);
    narrow(w->acc, m->rope, a->xtype, (char *)a->keys + (size_t)(at * m->rope) * type_size(a->xtype));
}

/* Queries of head h and R rows from t: scaled, carried to the latent space, the rest rotated. */
static void absorb(const Args *a, Work *w, long h, long t, int R)
{
    const Mla *m = a->mla;
    const long H = m->num_heads, width = m->nope + m->rope, half = m->rope / 2;
    const float *rows[RMAX];
    for (int r = 0; r < R; r++) {
        const void *q = offset(a->q, a->xtype, ((t + r) * H + h) * width);
        widen_scaled(q, a->xtype, m->nope, m->scale, w->rows + r * m->nope);
        rows[r] = w->rows + r * m->nope;
        float *rope = a->q_rope + ((t + r - a->t0) * H + h) * m->rope;
        widen_scaled(offset(q, a->xtype, m->nope), a->xtype, m->rope, m->scale, rope);
        rotate(rope, a->cos + (t + r) * half, a->sin + (t + r) * half, half);
    }
    rows_dot(R, m->wtype, offset(m->key_up, m->wtype, h * m->latent * m->nope), m->nope, m->latent, rows, m->nope,
             a->q_latent + ((t - a->t0) * H + h) * m->latent, H * m->latent);
}

/* R heads of row t from h: the mean latent of each takes the place of its query. */
static void attend(const Args *a, Work *w, long t, long h, int R)
{
    const Mla *m = a->mla;
    const long L = m->latent, P = m->rope, first = a->kv_start[t], end = a->pos[t] + 1;
    float *q = a->q_latent + ((t - a->t0) * m->num_heads + h) * L, top[RMAX], sum[RMAX];
    const float *latent[RMAX], *rope[RMAX];
    for (int r = 0; r < R; r++) {
        latent[r] = q + r * L;
        rope[r] = a->q_rope + ((t - a->t0) * m->num_heads + h + r) * P;
        top[r] = LOW, sum[r] = 0.0f;
    }
    memset(w->acc, 0, (size_t)(R * L) * 4);
    for (long j = 0; j < end; j += BLOCK) {
        const long n = min_l(BLOCK, end - j);
        const void *block = offset(a->latents, a->xtype, (first + j) * L);
        rows_dot(R, a->xtype, block, L, n, latent, L, w->score, BLOCK);
        rows_dot(R, a->xtype, offset(a->keys, a->xtype, (first + j) * P), P, n, rope, P, w->extra, BLOCK);
        for (int r = 0; r < R; r++) {
            float *score = w->score + r * BLOCK;
            for (long i = 0; i < BLOCK; i += LANES)
                v_store(score + i, v_add(v_load(score + i), v_load(w->extra + r * BLOCK + i)));
            scale_row(w->acc + r * L, softmax_block(score, 0, n, &top[r], &sum[r]), L);
        }
        pv(R, a->xtype, block, L, n, w->score, w->acc, L);
    }
    for (int r = 0; r < R; r++)
        widen_scaled(w->acc + r * L, F32, L, 1.0f / sum[r], q + r * L);
}

/* Outputs of head h and R rows from t. */
static void unfold(const Args *a, Work *w, long h, long t, int R)
{
    const Mla *m = a->mla;
    const long H = m->num_heads, V = m->value;
    const float *rows[RMAX];
    for (int r = 0; r < R; r++)
        rows[r] = a->q_latent + ((t + r - a->t0) * H + h) * m->latent;
    rows_dot(R, m->wtype, offset(m->value_up, m->wtype, h * V * m->latent), m->latent, V, rows, m->latent, w->rows, V);
    for (int r = 0; r < R; r++)
        narrow(w->rows + r * V, V, a->xtype, (char *)a->out + (size_t)(((t + r) * H + h) * V) * type_size(a->xtype));
}

static void mla_body(void *args, Team *team)
{
    const Args *a = args;
    const long H = a->mla->num_heads, t = a->t1 - a->t0, row_tiles = (t + RMAX - 1) / RMAX, head_tiles = (H + RMAX - 1) / RMAX;
    Work w;
    work_layout(a->work + (size_t)team->tid * a->work_bytes, a->mla, &w);
    EACH_ITEM(i, team, 0, t)
        cache_row(a, &w, a->t0 + i);
    EACH_ITEM(i, team, 1, H * row_tiles)
        absorb(a, &w, i / row_tiles, a->t0 + i % row_tiles * RMAX, (int)min_l(RMAX, t - i % row_tiles * RMAX));
    team_barrier(team);
    EACH_ITEM(i, team, 2, t * head_tiles) /* from the last row, whose context is the longest */
        attend(a, &w, a->t1 - 1 - i / head_tiles, i % head_tiles * RMAX, (int)min_l(RMAX, H - i % head_tiles * RMAX));
    team_barrier(team);
    EACH_ITEM(i, team, 3, H * row_tiles)
        unfold(a, &w, i / row_tiles, a->t0 + i % row_tiles * RMAX, (int)min_l(RMAX, t - i % row_tiles * RMAX));
}

int FN(mla)(int threads, const Mla *mla, const void *q, const void *kv, int xtype, int64_t t, const float *cos, const float *sin,
            const int64_t *kv_start, const int64_t *pos, void *latents, void *keys, void *out)
{
    const long H = mla->num_heads, slab = max_l(RMAX, SLAB_BYTES / (H * mla->latent * 4));
    Args a = {.mla = mla, .q = q, .kv = kv, .xtype = xtype, .cos = cos, .sin = sin, .kv_start = kv_start, .pos = pos,
              .latents = latents, .keys = keys, .out = out};
    Work unused;
    a.work_bytes = work_layout(NULL, mla, &unused);
    for (a.t0 = 0; a.t0 < t; a.t0 = a.t1) {
        a.t1 = min_l(t, a.t0 + slab);
        const long rows = a.t1 - a.t0;
        double keys_seen = 0;
        for (long r = a.t0; r < a.t1; r++)
            keys_seen += (double)(pos[r] + 1);
        int n = team_size(threads, (double)H * (keys_seen * (double)(2 * mla->latent + mla->rope) +
                                       (double)(rows * mla->latent * (mla->nope + mla->value))));
        size_t latent_bytes = align64((size_t)(rows * H * mla->latent) * 4), rope_bytes = align64((size_t)(rows * H * mla->rope) * 4);
        char *m = scratch(latent_bytes + rope_bytes + a.work_bytes * (size_t)n);
        if (!m)
            return ERR_MEMORY;
        a.q_latent = (float *)m, a.q_rope = (float *)(m + latent_bytes), a.work = m + latent_bytes + rope_bytes;
        team_run(n, mla_body, &a);
    }
    return OK;
}
