"""The weighted sum of a row's experts, in ascending expert id. Letters: T rows, K choices, D hidden.

The C library and the Triton kernel add with one rounding (fused), in the same order: they give the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, empty, get_num_threads

from smoe.kernels import native
from smoe.kernels.experts import MAX_CHOICES
from smoe.kernels.native import DTYPE_CODES
from smoe.kernels.routing.launch import block_of, blocks, launch, use_triton

if TYPE_CHECKING:
    import triton.language as tl


def moe_combine(
    pairs_TKD: Tensor, ids_TK: Tensor, weights_TK: Tensor, out_dtype: torch.dtype, residual: Tensor | None = None
) -> Tensor:
    """residual + sum over choices, in ascending expert id, of weight * pair -> [T, D] of out_dtype.

    pairs_TKD f32, ids_TK i32 (negative: the choice is left out), weights_TK f32, residual [T, D].
    """
    if use_triton(pairs_TKD):
        return _combine_on_device(pairs_TKD, ids_TK, weights_TK, out_dtype, residual)
    lib = native.library()
    if lib is None or not pairs_TKD.is_cpu or out_dtype not in DTYPE_CODES:
        return moe_combine_ref(pairs_TKD, ids_TK, weights_TK, out_dtype, residual)
    num_rows, num_choices, dim = pairs_TKD.shape
    if ids_TK.dtype is not torch.int32 or weights_TK.dtype is not torch.float32 or num_choices > MAX_CHOICES:
        raise ValueError(f"moe_combine: ids must be i32, weights f32, at most {MAX_CHOICES} choices")
    pairs_TKD, ids_TK, weights_TK = pairs_TKD.contiguous(), ids_TK.contiguous(), weights_TK.contiguous()
    residual = fit_residual(residual, out_dtype, num_rows * dim)
    y_TD = empty(num_rows, dim, dtype=out_dtype)
    code = DTYPE_CODES[out_dtype]
    status = lib.held.smoe_combine(
        get_num_threads(),
        pairs_TKD.data_ptr(),
        num_rows,
        num_choices,
        dim,
        ids_TK.data_ptr(),
        weights_TK.data_ptr(),
        None if residual is None else residual.data_ptr(),
        code,
        y_TD.data_ptr(),
        code,
    )
    if status:
        native.fail(status)
    return y_TD


def moe_combine_ref(
    pairs_TKD: Tensor, ids_TK: Tensor, weights_TK: Tensor, out_dtype: torch.dtype, residual: Tensor | None = None
) -> Tensor:
    """The torch twin: the same order, but products are rounded before they are added."""
    order_TK = ids_TK.sort(dim=-1, stable=True).indices
    y_TD = torch.zeros_like(pairs_TKD[:, 0])
    rows_T = torch.arange(len(ids_TK), device=ids_TK.device)
    for choice_T in order_TK.unbind(1):
        weighted_TD = weights_TK[rows_T, choice_T, None] * pairs_TKD[rows_T, choice_T]
        used_T1 = ids_TK[rows_T, choice_T, None] >= 0
        y_TD = torch.where(used_T1, y_TD + weighted_TD, y_TD)
    return (y_TD if residual is None else residual.float() + y_TD).to(out_dtype)


def fit_residual(residual: Tensor | None, dtype: torch.dtype, size: int) -> Tensor | None:
    """The residual as the library reads it; ValueError if it does not fit."""
    if residual is None:
        return None
    if residual.dtype is not dtype or residual.numel() != size:
        raise ValueError(
            f"moe: residual must be {dtype} with {size} values, not {residual.dtype} {list(residual.shape)}"
        )
    return residual.contiguous()


def _combine_on_device(
    pairs_TKD: Tensor, ids_TK: Tensor, weights_TK: Tensor, out_dtype: torch.dtype, residual: Tensor | None
) -> Tensor:
    num_rows, num_choices, dim = pairs_TKD.shape
    pairs_TKD, ids_TK, weights_TK = pairs_TKD.contiguous(), ids_TK.contiguous(), weights_TK.contiguous()
    y_TD = torch.empty(num_rows, dim, dtype=out_dtype, device=pairs_TKD.device)
    rest = y_TD if residual is None else residual.contiguous()
    block = block_of(dim, 1024)
    sizes = {"RESIDUAL": residual is not None, "CHOICES": block_of(num_choices), "BLOCK": block}
    grid = (num_rows, blocks(dim, block))
    launch(_combine, grid, pairs_TKD, pairs_TKD, ids_TK, weights_TK, rest, y_TD, num_choices, dim, **sizes)
    return y_TD


def _combine(
    pairs: tl.tensor,
    ids: tl.tensor,
    weights: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    num_choices: tl.tensor,
    dim: tl.tensor,
    RESIDUAL: tl.constexpr,
    CHOICES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    choice = tl.arange(0, CHOICES)
    chosen_id = tl.load(ids + row * num_choices + choice, mask=choice < num_choices, other=-1).to(tl.int64)
    # Equal ids keep the order of the choices. The end is past every key.
    end = tl.full((), 1 << 60, tl.int64)
    keys = tl.where(chosen_id < 0, end, chosen_id * CHOICES + choice)
    last = tl.full((), -1, tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(num_choices):
        last = tl.min(tl.where(keys > last, keys, end), 0)
        pair = row * num_choices + tl.where(last < end, last % CHOICES, 0)
        weight = tl.where(last < end, tl.load(weights + pair), 0.0)
        used = column < tl.where(last < end, dim, 0)
        value = tl.load(pairs + pair * dim + column, mask=used, other=0.0)
        total = tl.fma(tl.zeros((BLOCK,), tl.float32) + weight, value, total)
    if RESIDUAL:
        total = tl.load(residual + row * dim + column, mask=column < dim, other=0.0).to(tl.float32) + total
    tl.store(out + row * dim + column, total.to(out.dtype.element_ty), mask=column < dim)
