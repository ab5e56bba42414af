/* The gated delta net of Qwen3-Next: causal convolution, delta rule and gated norm, with the states updated in place.
 *
 * Tokens of a sequence are taken one after the other (the recurrent form), so its results do not depend on how its
 * prompt was cut or on other sequences. Columns of a state evolve independently: a block of them stays in the
 * first-level cache over all tokens of the span.
 */
#include "norm.h"
#include <math.h>

#define COLUMNS 64
#define CHANNELS 256
#define SLAB 64 /* rows at a time: what lies between the phases stays in the second-level cache */
#define L2_EPS 1e-6f

typedef struct {
    const Delta *net;
    const void *x; /* [t, width]: q | k | v | z | b | a */
    int xtype;
    long t, width, channels;
    const int64_t *spans; /* [num_spans, 4]: first row, rows, past, state slot */
    long num_spans;
    float *tails, *states; /* [slots, taps - 1, channels], [slots, value_heads, key_dim, value_dim] */
    void *out;             /* [t, value_heads * value_dim] of xtype */
    float *mixed;          /* [t, channels]: q | k | v after the convolution */
    float *rates;          /* [t, 2, value_heads]: decay, beta */
    float *read;           /* [t, value_heads * value_dim] */
    float *blocks;         /* per thread [key_dim, COLUMNS] */
} Args;

INLINE vf load_any(const void *p, int type, long i, int n)
{
    return n == LANES ? load_type(p, type, i) : load_type_n(p, type, i, n);
}
INLINE void store_any(void *p, int type, long i, vf a, int n)
{
    if (n == LANES)
        store_type(p, type, i, a);
    else
        store_type_n(p, type, i, a, n);
}
INLINE vf v_sigmoid(vf a) { return v_div(v_set1(1.0f), v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), a)))); }

/* Input j of a span's channels from c on; negative j are the rows before it. */
INLINE vf conv_input(const Args *a, const int64_t *span, long j, long c, int n)
{
    if (j >= 0)
        return load_any(a->x, a->xtype, (span[0] + j) * a->width + c, n);
    if (span[2] == 0)
        return v_zero();
    const long taps = a->net->taps;
    return load_any(a->tails, F32, (span[3] * (taps - 1) + taps - 1 + j) * a->channels + c, n);
}

static void convolve(const Args *a, const int64_t *span, long c0, long c1)
{
    const long taps = a->net->taps;
    for (long c = c0; c < c1; c += LANES) {
        int n = (int)min_l(LANES, c1 - c);
        for (long i = 0; i < span[1]; i++) {
            vf sum = v_zero();
            for (long k = 0; k < taps; k++)
                sum = v_fma(load_any(a->net->conv, F32, k * a->channels + c, n),
                            conv_input(a, span, i - (taps - 1) + k, c, n), sum);
            store_any(a->mixed, F32, (span[0] + i) * a->channels + c, v_mul(sum, v_sigmoid(sum)), n);
        }
        for (long j = 0; j < taps - 1; j++) /* ascending: a short span shifts its tail down */
            store_any(a->tails, F32, (span[3] * (taps - 1) + j) * a->channels + c,
                      conv_input(a, span, span[1] - (taps - 1) + j, c, n), n);
    }
}

/* Each of `count` vectors of dk values: x * by / sqrt(sum(x^2) + eps). */
static void unit_rows(float *x, long count, long dk, float by)
{
    for (; count > 0; count--, x += dk) {
        vf acc = v_zero();
        for (long i = 0; i < dk; i += LANES) {
            vf v = load_any(x, F32, i, (int)min_l(LANES, dk - i));
            acc = v_fma(v, v, acc);
        }
        vf scale = v_set1(by / __builtin_sqrtf(v_sum(acc) + L2_EPS));
        for (long i = 0; i < dk; i += LANES) {
            int n = (int)min_l(LANES, dk - i);
            store_any(x, F32, i, v_mul(load_any(x, F32, i, n), scale), n);
        }
    }
}

INLINE float scalar(const Args *a, long i)
{
    if (a->xtype == F32)
        return ((const float *)a->x)[i];
    uint32_t bits = (uint32_t)((const bf16 *)a->x)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void prepare_token(const Args *a, long t)
{
    const Delta *d = a->net;
    const long H = d->value_heads, b = t * a->width + a->channels + H * d->value_dim;
    float *decay = a->rates + t * 2 * H, *beta = decay + H, *q = a->mixed + t * a->channels;
    unit_rows(q, d->key_heads, d->key_dim, 1.0f / __builtin_sqrtf((float)d->key_dim));
    unit_rows(q + d->key_heads * d->key_dim, d->key_heads, d->key_dim, 1.0f);
    for (long h = 0; h < H; h++) {
        float x = scalar(a, b + H + h) + d->dt_bias[h];
        float softplus = x > 20.0f ? x : log1pf(expf(x));
        decay[h] = expf(d->rate[h] * softplus);
        beta[h] = 1.0f / (1.0f + expf(-scalar(a, b + h)));
    }
}

#define EACH(j) _Pragma("GCC unroll 4") for (int j = 0; j < C; j++)

/* One head of one span, C vectors of columns from c on (of n lanes each). `block` [key_dim, C * LANES] holds the state
 * meanwhile: in place its rows would compete for a few sets of the cache. */
INLINE void recur(const int C, const Args *a, const int64_t *span, long h, long c, int n, float *block)
{
    const Delta *d = a->net;
    const long dk = d->key_dim, dv = d->value_dim, H = d->value_heads, kh = h / (H / d->key_heads);
    float *state = a->states + (span[3] * H + h) * dk * dv + c;
    for (long i = 0; i < dk; i++)
        EACH(j) v_store(block + (i * C + j) * LANES, span[2] ? load_any(state, F32, i * dv + j * LANES, n) : v_zero());
    for (long t = span[0]; t < span[0] + span[1]; t++) {
        const float *q = a->mixed + t * a->channels + kh * dk, *k = q + d->key_heads * dk;
        const float *v = a->mixed + t * a->channels + 2 * d->key_heads * dk + h * dv + c;
        const vf decay = v_set1(a->rates[t * 2 * H + h]), beta = v_set1(a->rates[(t * 2 + 1) * H + h]);
        vf even[4], odd[4], update[4];
        EACH(j) even[j] = odd[j] = v_zero();
#define HOLD(sum, i)                                                                                                   \
    {                                                                                                                  \
        const vf ki = v_set1(k[i]);                                                                                    \
        EACH(j) sum[j] = v_fma(v_load(block + ((i) * C + j) * LANES), ki, sum[j]);                                     \
    }
        long i = 0;
        for (; i + 2 <= dk; i += 2) {
            HOLD(even, i)
            HOLD(odd, i + 1)
        }
        if (i < dk)
            HOLD(even, i)
#undef HOLD
        EACH(j)
        {
            vf old = v_mul(v_add(even[j], odd[j]), decay);
            update[j] = v_mul(v_sub(load_any(v, F32, j * LANES, n), old), beta);
            even[j] = odd[j] = v_zero();
        }
#define WRITE_READ(sum, i)                                                                                             \
    {                                                                                                                  \
        const vf ki = v_set1(k[i]), qi = v_set1(q[i]);                                                                 \
        EACH(j)                                                                                                        \
        {                                                                                                              \
            float *at = block + ((i) * C + j) * LANES;                                                                 \
            vf s = v_fma(ki, update[j], v_mul(v_load(at), decay));                                                     \
            v_store(at, s);                                                                                            \
            sum[j] = v_fma(qi, s, sum[j]);                                                                             \
        }                                                                                                              \
    }
        for (i = 0; i + 2 <= dk; i += 2) {
            WRITE_READ(even, i)
            WRITE_READ(odd, i + 1)
        }
        if (i < dk)
            WRITE_READ(even, i)
#undef WRITE_READ
        EACH(j) store_any(a->read, F32, (t * H + h) * dv + c + j * LANES, v_add(even[j], odd[j]), n);
    }
    for (long i = 0; i < dk; i++)
        EACH(j) store_any(state, F32, i * dv + j * LANES, v_load(block + (i * C + j) * LANES), n);
}

static void recur_columns(const Args *a, const int64_t *span, long h, long c0, long c1, float *block)
{
    long c = c0;
    for (; c + 4 * LANES <= c1; c += 4 * LANES)
        recur(4, a, span, h, c, LANES, block);
    for (; c + LANES <= c1; c += LANES)
        recur(1, a, span, h, c, LANES, block);
    if (c < c1)
        recur(1, a, span, h, c, (int)(c1 - c), block);
}

static void gated_norm(const Args *a, long t)
{
    const Delta *d = a->net;
    const long dv = d->value_dim, H = d->value_heads;
    for (long h = 0; h < H; h++) {
        float *y = a->read + (t * H + h) * dv;
        norm_row(&d->norm, y, F32, dv, y);
        for (long i = 0; i < dv; i += LANES) {
            int n = (int)min_l(LANES, dv - i);
            vf z = load_any(a->x, a->xtype, t * a->width + a->channels + h * dv + i, n);
            store_any(a->out, a->xtype, (t * H + h) * dv + i, v_mul(load_any(y, F32, i, n), v_mul(z, v_sigmoid(z))), n);
        }
    }
}

static void delta_body(void *args, Team *team)
{
    const Args *a = args;
    const Delta *d = a->net;
    const long slices = (a->channels + CHANNELS - 1) / CHANNELS, blocks = (d->value_dim + COLUMNS - 1) / COLUMNS;
    float *block = a->blocks + team->tid * d->key_dim * COLUMNS;
    EACH_ITEM(i, team, 0, a->num_spans * slices) {
        const long c = i % slices * CHANNELS;
        convolve(a, a->spans + i / slices * 4, c, min_l(a->channels, c + CHANNELS));
    }
    team_barrier(team);
    EACH_ITEM(t, team, 1, a->t)
        prepare_token(a, t);
    team_barrier(team);
    EACH_ITEM(i, team, 2, a->num_spans * d->value_heads * blocks) {
        const long c = i % blocks * COLUMNS, h = i / blocks % d->value_heads;
        recur_columns(a, a->spans + i / (blocks * d->value_heads) * 4, h, c, min_l(d->value_dim, c + COLUMNS), block);
    }
    team_barrier(team);
    EACH_ITEM(t, team, 3, a->t)
        gated_norm(a, t);
}

/* The parts of the spans in rows [t0, t1), counted from t0. */
static long cut_spans(const int64_t *spans, long num_spans, long t0, long t1, int64_t *pieces)
{
    long count = 0;
    for (const int64_t *span = spans; span < spans + num_spans * 4; span += 4) {
        const long from = max_l(span[0], t0), to = min_l(span[0] + span[1], t1);
        if (from >= to)
            continue;
        int64_t *piece = pieces + 4 * count++;
        piece[0] = from - t0, piece[1] = to - from, piece[2] = span[2] + from - span[0], piece[3] = span[3];
    }
    return count;
}

int FN(delta)(int threads, const Delta *net, const void *x, int xtype, int64_t t, const int64_t *spans, int64_t num_spans,
              float *tails, float *states, void *out)
{
    const long H = net->value_heads, values = H * net->value_dim, channels = 2 * net->key_heads * net->key_dim + values;
    const long width = channels + values + 2 * H, slab = min_l(t, SLAB);
    int n = team_size(threads, (double)slab * (double)(3 * values * net->key_dim + channels * net->taps));
    size_t mixed = align64((size_t)(slab * channels) * 4), rates = align64((size_t)(slab * 2 * H) * 4);
    size_t read = align64((size_t)(slab * values) * 4), blocks = align64((size_t)(n * net->key_dim * COLUMNS) * 4);
    char *m = scratch(mixed + rates + read + blocks + (size_t)slab * 4 * sizeof(int64_t));
    if (!m)
        return ERR_MEMORY;
    Args a = {.net = net, .xtype = xtype, .channels = channels, .width = width, .tails = tails, .states = states};
    a.mixed = (float *)m, a.rates = (float *)(m + mixed), a.read = (float *)(m + mixed + rates);
    a.blocks = (float *)(m + mixed + rates + read);
    int64_t *pieces = (int64_t *)(m + mixed + rates + read + blocks);
    a.spans = pieces;
    for (long t0 = 0; t0 < t; t0 += SLAB) {
        a.t = min_l(SLAB, t - t0);
        a.x = offset(x, xtype, t0 * width);
        a.out = (char *)out + (size_t)(t0 * values) * type_size(xtype);
        a.num_spans = cut_spans(spans, num_spans, t0, t0 + a.t, pieces);
        team_run(n, delta_body, &a);
    }
    return OK;
}
