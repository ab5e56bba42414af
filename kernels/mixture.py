"""Mixture of experts: (row, choice) pairs grouped by slot, summed by expert id. Letters: T rows, K choices, D hidden.

`moe` is `moe_pairs` and `moe_combine` in one native call, with the same bits.
"""

import torch
from torch import Tensor, empty, empty_like, get_num_threads

from smoe.kernels import native
from smoe.kernels.experts import MAX_CHOICES, ExpertTable
from smoe.kernels.native import DTYPE_CODES


def moe_pairs(x_TD: Tensor, slots_TK: Tensor, table: ExpertTable, pairs_TKD: Tensor) -> None:
    """Writes the unweighted expert output of each pair with slot >= 0 into pairs_TKD f32; others stay untouched.

    slots_TK i32. LookupError for an empty slot, IndexError for one outside of the table; nothing is written then.
    """
    call = table.entry(x_TD, slots_TK)
    if call is None:
        return moe_pairs_ref(x_TD, slots_TK, table, pairs_TKD)
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


def moe_combine(
    pairs_TKD: Tensor, ids_TK: Tensor, weights_TK: Tensor, out_dtype: torch.dtype, residual: Tensor | None = None
) -> Tensor:
    """residual + sum over choices, in ascending expert id, of weight * pair -> [T, D] of out_dtype.

    pairs_TKD f32, ids_TK i32 (negative: the choice is left out), weights_TK f32, residual [T, D].
    """
    lib = native.library()
    if lib is None or not pairs_TKD.is_cpu or out_dtype not in DTYPE_CODES:
        return moe_combine_ref(pairs_TKD, ids_TK, weights_TK, out_dtype, residual)
    num_rows, num_choices, dim = pairs_TKD.shape
    if ids_TK.dtype is not torch.int32 or weights_TK.dtype is not torch.float32 or num_choices > MAX_CHOICES:
        raise ValueError(f"moe_combine: ids must be i32, weights f32, at most {MAX_CHOICES} choices")
    pairs_TKD, ids_TK, weights_TK = pairs_TKD.contiguous(), ids_TK.contiguous(), weights_TK.contiguous()
    residual = _residual(residual, out_dtype, num_rows * dim)
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


def moe(
    x_TD: Tensor,
    slots_TK: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    table: ExpertTable,
    residual: Tensor | None = None,
) -> Tensor:
    """Both in one call -> [T, D] of x's dtype; pairs with a negative slot or id are left out of the sum."""
    call = table.entry(x_TD, slots_TK)
    if call is None:
        return moe_ref(x_TD, slots_TK, ids_TK, weights_TK, table, residual)
    num_rows, num_choices = slots_TK.shape
    if ids_TK.dtype is not torch.int32 or weights_TK.dtype is not torch.float32:
        raise ValueError("moe: ids must be i32 and weights f32")
    if ids_TK.numel() != num_rows * num_choices or weights_TK.numel() != num_rows * num_choices:
        raise ValueError(f"moe: ids and weights must be [{num_rows}, {num_choices}]")
    x_TD, slots_TK = x_TD.contiguous(), slots_TK.contiguous()
    ids_TK, weights_TK = ids_TK.contiguous(), weights_TK.contiguous()
    residual = _residual(residual, x_TD.dtype, num_rows * table.hidden)
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


def moe_pairs_ref(x_TD: Tensor, slots_TK: Tensor, table: ExpertTable, pairs_TKD: Tensor) -> None:
    """The torch twin of moe_pairs: one pass over the distinct slots."""
    x_TD = x_TD if table.norm is None else table.norm.reference(x_TD)
    slots = sorted(set(slots_TK.flatten().tolist()) - {-1})
    for slot in slots:
        table.tensors(slot)
    for slot in slots:
        rows, choices = (slots_TK == slot).nonzero(as_tuple=True)
        pairs_TKD[rows, choices] = table.apply_ref(slot, x_TD[rows])


def moe_combine_ref(
    pairs_TKD: Tensor, ids_TK: Tensor, weights_TK: Tensor, out_dtype: torch.dtype, residual: Tensor | None = None
) -> Tensor:
    """The torch twin of moe_combine, in the same order."""
    order_TK = ids_TK.sort(dim=-1, stable=True).indices
    y_TD = torch.zeros_like(pairs_TKD[:, 0])
    rows_T = torch.arange(len(ids_TK), device=ids_TK.device)
    for choice_T in order_TK.unbind(1):
        weighted_TD = weights_TK[rows_T, choice_T, None] * pairs_TKD[rows_T, choice_T]
        used_T1 = ids_TK[rows_T, choice_T, None] >= 0
        y_TD = torch.where(used_T1, y_TD + weighted_TD, y_TD)
    return (y_TD if residual is None else residual.float() + y_TD).to(out_dtype)


def moe_ref(
    x_TD: Tensor,
    slots_TK: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    table: ExpertTable,
    residual: Tensor | None = None,
) -> Tensor:
    """The torch twin of moe."""
    pairs_TKD = torch.empty(*slots_TK.shape, table.hidden, device=x_TD.device)
    moe_pairs_ref(x_TD, slots_TK, table, pairs_TKD)
    used_ids_TK = ids_TK.masked_fill(slots_TK < 0, -1)
    return moe_combine_ref(pairs_TKD, used_ids_TK, weights_TK, x_TD.dtype, residual)


def _residual(residual: Tensor | None, dtype: torch.dtype, size: int) -> Tensor | None:
    if residual is None:
        return None
    if residual.dtype is not dtype or residual.numel() != size:
        raise ValueError(
            f"moe: residual must be {dtype} with {size} values, not {residual.dtype} {list(residual.shape)}"
        )
    return residual.contiguous()
