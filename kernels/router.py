"""Routing: softmax over all experts and the choice of k. Letters: T rows, E experts, K choices."""

import torch
from torch import Tensor, empty, get_num_threads

from smoe.kernels import native


def topk_softmax(logits_TE: Tensor, k: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """logits_TE [T, E] -> ids_TK i32 and weights_TK f32, by descending weight, ties to the lowest id.

    Weights are softmax over all E; `normalize` divides them by the sum of the chosen. A row whose logits are not
    all finite gets NaN weights, and distinct ids in range.
    """
    lib = native.library()
    if lib is None or not logits_TE.is_cpu:
        return topk_softmax_ref(logits_TE, k, normalize)
    if logits_TE.dtype is not torch.float32 or not logits_TE.is_contiguous():
        logits_TE = logits_TE.float().contiguous()
    num_rows, num_experts = logits_TE.shape
    if not 0 < k <= num_experts:
        raise ValueError(f"topk_softmax: k={k} of {num_experts} experts")
    ids_TK = empty(num_rows, k, dtype=torch.int32)
    weights_TK = empty(num_rows, k, dtype=torch.float32)
    status = lib.held.smoe_topk(
        get_num_threads(),
        logits_TE.data_ptr(),
        num_rows,
        num_experts,
        k,
        normalize,
        ids_TK.data_ptr(),
        weights_TK.data_ptr(),
    )
    if status:
        native.fail(status)
    return ids_TK, weights_TK


def topk_softmax_ref(logits_TE: Tensor, k: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """The torch twin."""
    if not 0 < k <= logits_TE.shape[1]:
        raise ValueError(f"topk_softmax: k={k} of {logits_TE.shape[1]} experts")
    logits_TE = logits_TE.float()
    weights_TE = logits_TE.softmax(-1).where(logits_TE.isfinite().all(-1, keepdim=True), torch.nan)
    keys_TE = weights_TE.nan_to_num(nan=-1.0)
    ids_TK = keys_TE.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    weights_TK = weights_TE.gather(1, ids_TK)
    if normalize:
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
    return ids_TK.to(torch.int32), weights_TK
