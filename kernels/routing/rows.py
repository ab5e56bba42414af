"""Rows by index: gather (also the inverse permutation of what an all-gather brought) and scatter.

Letters: T rows there, N rows here, D columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from smoe.kernels.routing.launch import block_of, blocks, launch, use_triton

if TYPE_CHECKING:
    import triton.language as tl


def gather_rows(x_TD: Tensor, index_N: Tensor, per_row: int = 1, out_ND: Tensor | None = None) -> Tensor:
    """out[n] = x[index[n] // per_row] -> [N, D]; zeros where the index is negative, whatever x holds.

    With `per_row` = K the index counts (row, choice) pairs, as `sort_by_bin` of [T, K] numbers them. A given
    `out_ND` is contiguous, of x's dtype, and apart from x.
    """
    if not use_triton(x_TD):
        return gather_rows_ref(x_TD, index_N, per_row, out_ND)
    x_TD, index_N = _rows(x_TD), index_N.contiguous()
    num_rows, dim = len(index_N), x_TD.shape[1]
    if out_ND is None:
        out_ND = torch.empty(num_rows, dim, dtype=x_TD.dtype, device=x_TD.device)
    block = block_of(dim, 2048)
    grid = (num_rows, blocks(dim, block))
    launch(_gather, grid, x_TD, x_TD, index_N, out_ND, dim, x_TD.stride(0), per_row, BLOCK=block)
    return out_ND


def gather_rows_ref(x_TD: Tensor, index_N: Tensor, per_row: int = 1, out_ND: Tensor | None = None) -> Tensor:
    """The torch twin."""
    if out_ND is None:
        out_ND = torch.empty(len(index_N), x_TD.shape[1], dtype=x_TD.dtype, device=x_TD.device)
    if len(x_TD) == 0:
        return out_ND.zero_()
    row_N = index_N.clamp(min=0)
    torch.index_select(x_TD, 0, row_N if per_row == 1 else row_N // per_row, out=out_ND)
    out_ND[index_N < 0] = 0
    return out_ND


def scatter_rows(x_ND: Tensor, index_N: Tensor, out_TD: Tensor) -> None:
    """out[index[n]] = x[n] where the index is not negative; other rows of `out` stay. No index may come twice.

    `out` may have a row stride, its columns are contiguous; dtypes are equal.
    """
    if not use_triton(x_ND):
        return scatter_rows_ref(x_ND, index_N, out_TD)
    x_ND, index_N = _rows(x_ND), index_N.contiguous()
    num_rows, dim = x_ND.shape
    block = block_of(dim, 2048)
    grid = (num_rows, blocks(dim, block))
    launch(_scatter, grid, x_ND, x_ND, index_N, out_TD, dim, x_ND.stride(0), out_TD.stride(0), BLOCK=block)


def scatter_rows_ref(x_ND: Tensor, index_N: Tensor, out_TD: Tensor) -> None:
    """The torch twin."""
    used_N = index_N >= 0
    out_TD[index_N[used_N].long()] = x_ND[used_N]


def _rows(x_TD: Tensor) -> Tensor:
    return x_TD if x_TD.stride(1) == 1 else x_TD.contiguous()


def _gather(
    x: tl.tensor,
    index: tl.tensor,
    out: tl.tensor,
    dim: tl.tensor,
    x_stride: tl.tensor,
    per_row: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    here = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(index + here).to(tl.int64)
    there = tl.where(at < 0, 0, at) // per_row
    value = tl.load(x + there * x_stride + column, mask=column < tl.where(at < 0, 0, dim), other=0)
    tl.store(out + here * dim + column, value, mask=column < dim)


def _scatter(
    x: tl.tensor,
    index: tl.tensor,
    out: tl.tensor,
    dim: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    here = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = tl.load(index + here).to(tl.int64)
    used = column < tl.where(there < 0, 0, dim)
    tl.store(out + there * out_stride + column, tl.load(x + here * x_stride + column, mask=used, other=0), mask=used)
