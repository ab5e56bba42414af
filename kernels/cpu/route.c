/* Norm, router logits and choice of experts in one call; the same bits as the three operations one by one. */
#include "dot.h"

#define DECLARE(name, params, call) int FN(name) params;
OPERATIONS(DECLARE)

int FN(route)(int threads, const Norm *norm, const Linear *lin, const void *x, int xtype, int64_t t, int64_t k, int normalize,
              void *h, float *logits, int32_t *ids, float *weights)
{
    int status = FN(norm)(threads, norm, x, xtype, t, lin->k, h);
    if (status == OK)
        status = FN(linear)(threads, lin, h, xtype, t, NULL, logits, F32);
    return status == OK ? FN(topk)(threads, logits, t, lin->n, k, normalize, ids, weights) : status;
}
