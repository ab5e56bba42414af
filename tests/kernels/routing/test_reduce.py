"""Sums over ranks in permuted order: against one torch sum after another, bit for bit; the two-step form too."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from smoe.kernels.routing.bins import sort_by_bin
from smoe.kernels.routing.reduce import permute_reduce, reduce_chunks
from smoe.kernels.routing.rows import gather_rows

Put = Callable[[Tensor], Tensor]
SHAPES = [  # (R, T, D, chunk): chunk None is ragged chunks back to back
    (1, 1, 1, None),  # smallest, nothing to add
    (3, 7, 70, None),  # no power of two, three ranks
    (4, 6, 33, 2),  # T is no multiple of R: chunks of 2 with padding
    (2, 0, 16, 1),  # no rows, but a chunk of padding
    (2, 3, 1030, 3),  # a block and some columns; one rank may get all rows
]


def by_hand(partials_RTD: Tensor, order: list[int], dtype: torch.dtype, residual_TD: Tensor | None) -> Tensor:
    out = torch.zeros(len(order), partials_RTD.shape[2])
    for place, row in enumerate(order):
        if row >= 0:
            out[place] = partials_RTD[0, row]
            for partial_TD in partials_RTD[1:]:
                out[place] = out[place] + partial_TD[row].float()
            if residual_TD is not None:
                out[place] = residual_TD[row].float() + out[place]
    return out.to(dtype)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("r", "t", "d", "chunk"), SHAPES)
def test_fused_and_in_two_steps(
    put: Put, dtype: torch.dtype, r: int, t: int, d: int, chunk: int | None, residual: bool
) -> None:
    partials, rest = torch.randn(r, t, d).to(dtype), torch.randn(t, d).to(dtype) if residual else None
    made = sort_by_bin(put(torch.randint(0, r, (t,))), r, chunk)
    expected = by_hand(partials, made.order.tolist(), dtype, rest)
    rest = None if rest is None else put(rest)
    assert torch.equal(permute_reduce(put(partials), made.order, dtype, rest).cpu(), expected)
    packed = [gather_rows(put(partial), made.order) for partial in partials]
    bounds = made.offsets.tolist()
    for begin, end in pairwise(bounds):
        received = torch.stack([rows[begin:end] for rows in packed])
        own = reduce_chunks(received, dtype, rest, made.order[begin:end])
        assert torch.equal(own.cpu(), expected[begin:end])


def test_without_order_all_rows_are_summed_in_place(put: Put) -> None:
    chunks = torch.randint(-9, 9, (3, 4, 5)).float()
    assert torch.equal(reduce_chunks(put(chunks), torch.float32).cpu(), chunks.sum(0))


def test_padding_is_zero_whatever_was_received(put: Put) -> None:
    order, rest = torch.tensor([1, -1], dtype=torch.int32), torch.full((2, 20), torch.inf)
    rest[1], chunks = 2.0, torch.ones(3, 2, 20)
    chunks[:, 1] = torch.nan
    assert reduce_chunks(put(chunks), torch.float32, put(rest), put(order))[:, 7].tolist() == [5.0, 0.0]
    assert reduce_chunks(put(chunks), torch.float32, None, put(order))[:, 7].tolist() == [3.0, 0.0]


def test_order_of_ranks(put: Put) -> None:
    """(1e8 + 1) - 1e8 = 0 in fp32; in another order it is 1. The residual comes last."""
    partials = torch.tensor([1e8, 1.0, -1e8])[:, None, None].expand(3, 2, 40).contiguous()
    order = torch.tensor([1, 0], dtype=torch.int32)
    rest = torch.full((2, 40), 1e8)
    assert bool((permute_reduce(put(partials), put(order), torch.float32) == 0).all())
    assert bool((permute_reduce(put(partials), put(order), torch.float32, put(rest)) == 1e8).all())
