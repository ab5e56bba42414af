"""Routing: softmax over all experts and the choice of k. Letters: T rows, E experts, K choices."""

from typing import NamedTuple

import torch
from torch import Tensor, empty, empty_like, get_num_threads

from smoe.kernels import native
from smoe.kernels.linear import SMALL_MACS, Linear
from smoe.kernels.native import DTYPE_CODES
from smoe.kernels.norm import RMSNorm


class Routed(NamedTuple):
    """h = norm(x) in x's dtype, logits fp32, ids i32 and weights fp32 by descending weight."""

    h_TD: Tensor
    logits_TE: Tensor
    ids_TK: Tensor
    weights_TK: Tensor


class SoftmaxRouter:
    """Norm, router logits and `topk_softmax` in one call; the same bits as the three one by one."""

    def __init__(self, weight: Tensor, bias: Tensor | None, norm: RMSNorm, k: int, normalize: bool) -> None:
        """weight [E, D], bias [E]."""
        if not 0 < k <= weight.shape[0]:
            raise ValueError(f"SoftmaxRouter: k={k} of {weight.shape[0]} experts")
        self.norm, self.k, self.normalize = norm, k, normalize
        self.linear = Linear(weight, bias, out_dtype=torch.float32)
        usable = native.usable(self.linear.weight, self.linear.bias, norm.factor)
        self._entries = native.entries("route", usable)
        self._small_rows = SMALL_MACS // max(1, weight.numel())

    def __call__(self, x_TD: Tensor) -> Routed:
        """x_TD [T, D] fp32 or bf16."""
        code = DTYPE_CODES.get(x_TD.dtype)
        if self._entries is None or code is None:
            return self.reference(x_TD)
        if not x_TD.is_contiguous():
            x_TD = x_TD.contiguous()
        num_rows, dim = x_TD.shape
        if dim != self.linear.num_inputs:
            raise ValueError(f"SoftmaxRouter: x has {dim} columns, expected {self.linear.num_inputs}")
        h_TD, logits_TE = empty_like(x_TD), empty(num_rows, self.linear.num_outputs)
        ids_TK, weights_TK = empty(num_rows, self.k, dtype=torch.int32), empty(num_rows, self.k)
        status = self._entries[num_rows > self._small_rows](
            get_num_threads(),
            self.norm.handle,
            self.linear.handle,
            x_TD.data_ptr(),
            code,
            num_rows,
            self.k,
            self.normalize,
            h_TD.data_ptr(),
            logits_TE.data_ptr(),
            ids_TK.data_ptr(),
            weights_TK.data_ptr(),
        )
        if status:
            native.fail(status)
        return Routed(h_TD, logits_TE, ids_TK, weights_TK)

    def reference(self, x_TD: Tensor) -> Routed:
        """The three operations one by one."""
        h_TD = self.norm(x_TD)
        logits_TE = self.linear(h_TD)
        return Routed(h_TD, logits_TE, *topk_softmax(logits_TE, self.k, self.normalize))


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
