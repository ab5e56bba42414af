/* Types shared by every operation; the Python side mirrors the structures in native.py. */
#pragma once
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { F32 = 0, BF16 = 1, INT4 = 2 };
enum { OK = 0, ERR_MEMORY = -1, ERR_SLOT_RANGE = -2, ERR_SLOT_EMPTY = -3, ERR_DAMAGED = -4 };
enum { ACT_SILU = 0, ACT_GPTOSS = 1 };

typedef struct {
    const float *weight; /* NULL: no norm */
    float eps;
    int32_t plus_one; /* weight already holds 1 + w, and is applied before the one rounding */
} Norm;

typedef struct {
    const void *weight; /* [n, k], rows ld elements apart */
    const float *bias;  /* [n] or NULL */
    int64_t ld, n, k;
    Norm norm;
    int32_t wtype;
} Linear;

typedef struct {
    const void *weight[3]; /* gate [ffn, hidden], up [ffn, hidden], down [hidden, ffn]; gate NULL: slot is empty */
    const void *bias[3];   /* of btype, or NULL */
    const void *scale[3];  /* bf16 [rows, groups] of INT4 weights */
    int64_t ld[3];         /* elements; bytes of INT4 weights */
    int64_t wtype, btype;
    int64_t group; /* columns that share a scale */
} Expert;

typedef struct {
    const Expert *experts;
    int64_t num_slots, hidden, ffn;
    Norm norm;
    int32_t act;
    float alpha, limit;
} Table;

typedef struct {
    int64_t num_heads, num_kv_heads, head_dim, rotary_dim;
    int64_t window; /* 0: unlimited */
    Norm q_norm, k_norm;
    const float *sinks; /* [num_heads] or NULL */
    float scale;
} Attention;

typedef struct {
    int64_t num_heads, latent, nope, rope, value;
    const void *key_up;   /* [num_heads, latent, nope] */
    const void *value_up; /* [num_heads, value, latent] */
    Norm norm;            /* of the latent */
    int32_t wtype;
    float scale;
} Mla;

typedef struct {
    int64_t key_heads, value_heads, key_dim, value_dim, taps;
    const float *conv;    /* [taps, channels] */
    const float *rate;    /* [value_heads]: -exp(A_log) */
    const float *dt_bias; /* [value_heads] */
    Norm norm;            /* of each head's output */
} Delta;

/* What the threads of one parallel region share: a work queue a phase, with the items that are finished. */
enum { PHASES = 6 };
typedef struct {
    struct {
        _Alignas(64) atomic_long next, done;
    } queue[PHASES];
} Shared;

/* One thread's part in a region. A thread may come late or not at all: whoever is there claims the items, and a
   barrier waits for items and not for threads, so a thread that the system does not run delays nobody. */
typedef struct {
    Shared *shared;
    int tid, n;         /* tid < n; scratch memory is laid out for n threads */
    int holding;        /* an item of phase `held` is claimed and not yet reported */
    int held;
    long total[PHASES]; /* items of the phases seen so far */
} Team;

typedef void (*Body)(void *args, Team *team);

void team_run(int n, Body body, void *args);
void team_barrier(Team *team); /* all items of the phases that this thread has claimed from are finished */
int team_size(int threads, double work); /* 1 if a region costs more than it saves on `work` multiply-adds */
void *scratch(size_t bytes); /* per calling thread, kept until a larger request; 64-byte aligned; NULL: out of memory */

/* The next item of a phase, `total` or above when there is none left; reports the one claimed before as finished. */
static inline long claim(Team *team, int phase, long total)
{
    if (team->n == 1)
        return team->total[phase]++;
    if (team->holding)
        atomic_fetch_add_explicit(&team->shared->queue[team->held].done, 1, memory_order_release);
    long i = atomic_fetch_add_explicit(&team->shared->queue[phase].next, 1, memory_order_relaxed);
    team->holding = i < total, team->held = phase, team->total[phase] = total;
    return i;
}

#define EACH_ITEM(i, team, phase, items)                                                                                  \
    for (long i, end_##i = (items); (i = claim(team, phase, end_##i)) < end_##i;)

static inline long min_l(long a, long b) { return a < b ? a : b; }
static inline long max_l(long a, long b) { return a > b ? a : b; }
static inline size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }
static inline size_t type_size(int type) { return type == BF16 ? 2 : 4; }

#define OPERATIONS(X)                                                                                                \
    X(norm, (int threads, const Norm *norm, const void *x, int xtype, int64_t t, int64_t d, void *y), (threads, norm, x, xtype, t, d, y))   \
    X(linear, (int threads, const Linear *lin, const void *x, int xtype, int64_t t, const void *residual, void *y, int ytype),    \
      (threads, lin, x, xtype, t, residual, y, ytype))                                                                        \
    X(attention,                                                                                                     \
      (int threads, const Attention *att, const void *qkv, int xtype, int64_t t, const float *cos, const float *sin,              \
       const int64_t *kv_start, const int64_t *pos, void *k_cache, void *v_cache, void *out),                        \
      (threads, att, qkv, xtype, t, cos, sin, kv_start, pos, k_cache, v_cache, out))                                          \
    X(topk, (int threads, const float *logits, int64_t t, int64_t e, int64_t k, int normalize, int32_t *ids, float *weights),     \
      (threads, logits, t, e, k, normalize, ids, weights))                                                                    \
    X(route,                                                                                                         \
      (int threads, const Norm *norm, const Linear *lin, const void *x, int xtype, int64_t t, int64_t k, int normalize,            \
       void *h, float *logits, int32_t *ids, float *weights),                                                        \
      (threads, norm, lin, x, xtype, t, k, normalize, h, logits, ids, weights))                                              \
    X(moe,                                                                                                           \
      (int threads, const Table *table, const void *x, int xtype, int64_t t, int64_t k, const int32_t *slots, const int32_t *ids, \
       const float *weights, const void *residual, float *pairs, void *y, int ytype),                                \
      (threads, table, x, xtype, t, k, slots, ids, weights, residual, pairs, y, ytype))                                       \
    X(combine,                                                                                                       \
      (int threads, const float *pairs, int64_t t, int64_t k, int64_t d, const int32_t *ids, const float *weights,                \
       const void *residual, int rtype, void *y, int ytype),                                                         \
      (threads, pairs, t, k, d, ids, weights, residual, rtype, y, ytype)) \
    X(mla,                                                                                                           \
      (int threads, const Mla *mla, const void *q, const void *kv, int xtype, int64_t t, const float *cos, const float *sin,      \
       const int64_t *kv_start, const int64_t *pos, void *latents, void *keys, void *out),                           \
      (threads, mla, q, kv, xtype, t, cos, sin, kv_start, pos, latents, keys, out))                                           \
    X(delta,                                                                                                         \
      (int threads, const Delta *net, const void *x, int xtype, int64_t t, const int64_t *spans, int64_t num_spans,           \
       float *tails, float *states, void *out),                                                                      \
      (threads, net, x, xtype, t, spans, num_spans, tails, states, out)) \
    X(quantise,                                                                                                      \
      (int threads, const void *w, int wtype, int64_t n, int64_t k, int64_t group, const float *inverses, int num_ratios,         \
       void *codes, void *scales),                                                                                   \
      (threads, w, wtype, n, k, group, inverses, num_ratios, codes, scales)) \
    X(residual,                                                                                                      \
      (int threads, const void *in, int64_t nbytes, const void *codes, int64_t ld, const void *scales, int64_t n, int64_t k,       \
       int64_t group, void *out, int64_t *used),                                                                     \
      (threads, in, nbytes, codes, ld, scales, n, k, group, out, used))                                                       \
    X(residual_of,                                                                                                   \
      (int threads, const void *weights, const void *codes, int64_t ld, const void *scales, int64_t n, int64_t k, int64_t group,  \
       void *out, int64_t *row_bytes, int64_t *used),                                                                \
      (threads, weights, codes, ld, scales, n, k, group, out, row_bytes, used))                                               \
    X(stream, (int threads, const float *x, int64_t n, float *out), (threads, x, n, out))
