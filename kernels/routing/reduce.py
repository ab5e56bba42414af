"""Sums over ranks, in ascending rank, delivered in permuted order: what the shuffled reduce-scatter computes.

`permute_reduce` has all partial sums at hand. Between ranks it takes two steps: each rank packs its partial sums by
`rows.gather_rows(partial, order)`, chunks change hands, and `reduce_chunks` sums what came; the bits are the same.
Letters: R ranks, T rows, N places of the permuted order, C rows of a chunk, D hidden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from smoe.kernels.routing.launch import block_of, blocks, launch, use_triton
from smoe.kernels.routing.rows import gather_rows_ref

if TYPE_CHECKING:
    import triton.language as tl


def permute_reduce(
    partials_RTD: Tensor, order_N: Tensor, out_dtype: torch.dtype, residual_TD: Tensor | None = None
) -> Tensor:
    """out[n] = residual[order[n]] + sum of partials[r, order[n]] -> [N, D]; zeros where order is negative.

    Summed in fp32, then added to the residual, then rounded once.
    """
    if not use_triton(partials_RTD):
        return permute_reduce_ref(partials_RTD, order_N, out_dtype, residual_TD)
    return _start(partials_RTD, order_N, out_dtype, residual_TD, permute=True)


def permute_reduce_ref(
    partials_RTD: Tensor, order_N: Tensor, out_dtype: torch.dtype, residual_TD: Tensor | None = None
) -> Tensor:
    """The torch twin."""
    packed_RND = torch.stack([gather_rows_ref(partial_TD, order_N) for partial_TD in partials_RTD])
    return reduce_chunks_ref(packed_RND, out_dtype, residual_TD, order_N)


def reduce_chunks(
    chunks_RCD: Tensor, out_dtype: torch.dtype, residual_TD: Tensor | None = None, order_C: Tensor | None = None
) -> Tensor:
    """out[c] = residual[order[c]] + sum of chunks[r, c] -> [C, D]; zeros where order is negative (padding).

    chunks[r] is what rank r sent; `order_C` tells which rows they are, and must come with a residual.
    """
    if not use_triton(chunks_RCD):
        return reduce_chunks_ref(chunks_RCD, out_dtype, residual_TD, order_C)
    return _start(chunks_RCD, order_C, out_dtype, residual_TD, permute=False)


def reduce_chunks_ref(
    chunks_RCD: Tensor, out_dtype: torch.dtype, residual_TD: Tensor | None = None, order_C: Tensor | None = None
) -> Tensor:
    """The torch twin."""
    sum_CD = chunks_RCD[0].to(torch.float32, copy=True)
    for chunk_CD in chunks_RCD[1:]:
        sum_CD += chunk_CD
    if residual_TD is not None:
        assert order_C is not None, "a residual comes with the order of the rows"
        sum_CD = gather_rows_ref(residual_TD, order_C).float() + sum_CD
    if order_C is not None:
        sum_CD[order_C < 0] = 0
    return sum_CD.to(out_dtype)


def _start(
    partials_RTD: Tensor, order: Tensor | None, out_dtype: torch.dtype, residual_TD: Tensor | None, *, permute: bool
) -> Tensor:
    assert residual_TD is None or order is not None, "a residual comes with the order of the rows"
    num_ranks, num_rows, dim = partials_RTD.shape
    partials_RTD = partials_RTD.contiguous()
    num_places = num_rows if order is None else len(order)
    out_ND = torch.empty(num_places, dim, dtype=out_dtype, device=partials_RTD.device)
    # Tensors that are not there are not read, but a kernel wants a pointer for each.
    order, residual = (out_ND if t is None else t.contiguous() for t in (order, residual_TD))
    block = block_of(dim, 1024)
    flags = {"PERMUTE": permute, "ORDER": order is not out_ND, "RESIDUAL": residual is not out_ND, "BLOCK": block}
    grid = (num_places, blocks(dim, block))
    launch(_reduce, grid, out_ND, partials_RTD, order, residual, out_ND, num_ranks, num_rows * dim, dim, **flags)
    return out_ND


def _reduce(
    partials: tl.tensor,
    order: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    num_ranks: tl.tensor,
    rank_stride: tl.tensor,
    dim: tl.tensor,
    PERMUTE: tl.constexpr,
    ORDER: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    here = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = here
    if ORDER:
        there = tl.load(order + here).to(tl.int64)
    used = column < tl.where(there < 0, 0, dim)
    row = here
    if PERMUTE:
        row = there
    total = tl.load(partials + row * dim + column, mask=used, other=0.0).to(tl.float32)
    at = row * dim
    for _ in range(1, num_ranks):
        at += rank_stride
        total += tl.load(partials + at + column, mask=used, other=0.0).to(tl.float32)
    if RESIDUAL:
        total = tl.load(residual + there * dim + column, mask=used, other=0.0).to(tl.float32) + total
    tl.store(out + here * dim + column, total.to(out.dtype.element_ty), mask=column < dim)
