"""Mixture of experts: (row, choice) pairs grouped by slot. Letters: T rows, K choices, D hidden.

`moe` is `moe_pairs` and `combine.moe_combine` in one native call, with the same bits.
"""

from typing import Any

import torch
from torch import Tensor, empty_like, get_num_threads

from smoe.kernels import native
from smoe.kernels.combine import fit_residual, moe_combine, moe_combine_ref
from smoe.kernels.native import DTYPE_CODES
from smoe.kernels.routing.launch import use_triton
from smoe.kernels.slots import SlotTable


def moe_pairs(x_TD: Tensor, slots_TK: Tensor, table: SlotTable[Any], pairs_TKD: Tensor) -> None:
    """Writes the unweighted expert output of each pair with slot >= 0 into pairs_TKD f32; others stay untouched.

    slots_TK i32. LookupError for an empty slot, IndexError for one outside of the table; nothing is written then. On a
    GPU nobody looks: an empty slot gives NaN, one outside of the table is left out.
    """
    call = table.entry(x_TD, slots_TK)
    if call is None:
        return _pairs_without_library(x_TD, slots_TK, table, pairs_TKD)
    if pairs_TKD.dtype is not torch.float32 or not pairs_TKD.is_contiguous():
        raise ValueError("moe_pairs: pairs must be contiguous fp32")
    if pairs_TKD.shape != (*slots_TK.shape, table.hidden):
        raise ValueError(f"moe_pairs: pairs must be {[*slots_TK.shape, table.hidden]}, not {list(pairs_TKD.shape)}")
    x_TD, slots_TK = x_TD.contiguous(), slots_TK.contiguous()
    num_rows, num_choices = slots_TK.shape
    status = call(
        get_num_threads(),
        table.handle,
        x_TD.data_ptr(),
        DTYPE_CODES[x_TD.dtype],
        num_rows,
        num_choices,
        slots_TK.data_ptr(),
        None,
        None,
        None,
        pairs_TKD.data_ptr(),
        None,
        0,
    )
    if status:
        native.fail(status)


def moe(
    x_TD: Tensor,
    slots_TK: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    table: SlotTable[Any],
    residual: Tensor | None = None,
) -> Tensor:
    """Both in one call -> [T, D] of x's dtype; pairs with a negative slot or id are left out of the sum."""
    call = table.entry(x_TD, slots_TK)
    if call is None:
        pairs_TKD = torch.empty(*slots_TK.shape, table.hidden, device=x_TD.device)
        _pairs_without_library(x_TD, slots_TK, table, pairs_TKD)
        left_out_TK = slots_TK != slots_TK.clamp(0, table.num_slots - 1)
        return moe_combine(pairs_TKD, ids_TK.masked_fill(left_out_TK, -1), weights_TK, x_TD.dtype, residual)
    num_rows, num_choices = slots_TK.shape
    if ids_TK.dtype is not torch.int32 or weights_TK.dtype is not torch.float32:
        raise ValueError("moe: ids must be i32 and weights f32")
    if ids_TK.numel() != num_rows * num_choices or weights_TK.numel() != num_rows * num_choices:
        raise ValueError(f"moe: ids and weights must be [{num_rows}, {num_choices}]")
    x_TD, slots_TK = x_TD.contiguous(), slots_TK.contiguous()
    ids_TK, weights_TK = ids_TK.contiguous(), weights_TK.contiguous()
    residual = fit_residual(residual, x_TD.dtype, num_rows * table.hidden)
    y_TD = empty_like(x_TD)
    code = DTYPE_CODES[x_TD.dtype]
    status = call(
        get_num_threads(),
        table.handle,
        x_TD.data_ptr(),
        code,
        num_rows,
        num_choices,
        slots_TK.data_ptr(),
        ids_TK.data_ptr(),
        weights_TK.data_ptr(),
        None if residual is None else residual.data_ptr(),
        None,
        y_TD.data_ptr(),
        code,
    )
    if status:
        native.fail(status)
    return y_TD


def _pairs_without_library(x_TD: Tensor, slots_TK: Tensor, table: SlotTable[Any], pairs_TKD: Tensor) -> None:
    if use_triton(x_TD):
        from smoe.kernels.triton_moe.pairs import device_pairs

        if device_pairs(x_TD, slots_TK, table, pairs_TKD):
            return
    moe_pairs_ref(x_TD, slots_TK, table, pairs_TKD)


def moe_pairs_ref(x_TD: Tensor, slots_TK: Tensor, table: SlotTable[Any], pairs_TKD: Tensor) -> None:
    """The torch twin of moe_pairs: one pass over the distinct slots."""
    x_TD = x_TD if table.norm is None else table.norm.reference(x_TD)
    slots = sorted(set(slots_TK.flatten().tolist()) - {-1})
    for slot in slots:
        table.tensors(slot)
    for slot in slots:
        rows, choices = (slots_TK == slot).nonzero(as_tuple=True)
        pairs_TKD[rows, choices] = table.apply_ref(slot, x_TD[rows])


def moe_ref(
    x_TD: Tensor,
    slots_TK: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    table: SlotTable[Any],
    residual: Tensor | None = None,
) -> Tensor:
    """The torch twin of moe."""
    pairs_TKD = torch.empty(*slots_TK.shape, table.hidden, device=x_TD.device)
    moe_pairs_ref(x_TD, slots_TK, table, pairs_TKD)
    used_ids_TK = ids_TK.masked_fill(slots_TK < 0, -1)
    return moe_combine_ref(pairs_TKD, used_ids_TK, weights_TK, x_TD.dtype, residual)
