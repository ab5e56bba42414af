/* Sum of a buffer of fp32: the bound that kernels which read weights once are measured against. */
#include "dot.h"

#define PIECE (64L << 10) /* floats */

typedef struct {
    const float *x;
    long n;
    float *partial; /* per thread, a cache line apart */
} Args;

static void stream_body(void *args, Team *team)
{
    const Args *a = args;
    vf sum[8];
    for (int j = 0; j < 8; j++)
        sum[j] = v_zero();
    EACH_ITEM(piece, team, 0, (a->n + PIECE - 1) / PIECE)
        for (long i = piece * PIECE, end = min_l(a->n, i + PIECE); i + 8 * LANES <= end; i += 8 * LANES)
            for (int j = 0; j < 8; j++) {
                _mm_prefetch((const char *)(a->x + i + j * LANES) + 8192, _MM_HINT_T1);
                sum[j] = v_add(sum[j], v_load(a->x + i + j * LANES));
            }
    for (int j = 1; j < 8; j++)
        sum[0] = v_add(sum[0], sum[j]);
    a->partial[team->tid * LANES] = v_sum(sum[0]);
}

int FN(stream)(int threads, const float *x, int64_t n, float *out)
{
    int size = team_size(threads, (double)n);
    Args a = {x, n, scratch((size_t)size * LANES * 4)};
    if (!a.partial)
        return ERR_MEMORY;
    memset(a.partial, 0, (size_t)size * LANES * 4);
    team_run(size, stream_body, &a);
    *out = 0.0f;
    for (int i = 0; i < size; i++)
        *out += a.partial[i * LANES];
    return OK;
}
