"""Rows by index: exact copies, zeros for negative indices, untouched rows, rows that lie apart."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from smoe.kernels.routing.bins import sort_by_bin
from smoe.kernels.routing.rows import gather_rows, scatter_rows
from tests.kernels.routing.cases import entries

Put = Callable[[Tensor], Tensor]
SHAPES = [  # (T, N, D)
    (1, 1, 1),  # smallest
    (7, 13, 70),  # rows repeat, no power of two
    (5, 0, 16),  # nothing to gather
    (0, 4, 16),  # nothing to gather from: padding alone
    (3, 5, 2049),  # one column past a block
    (2304, 20, 8),  # many rows, few wanted
]


def index_of(num: int, num_rows: int) -> Tensor:
    index = torch.randint(0, max(1, num_rows), (num,), dtype=torch.int32)
    return index.masked_fill((torch.arange(num) % 3 == 1) | (num_rows == 0), -1)


@pytest.mark.parametrize(("t", "n", "d"), SHAPES)
def test_gather(put: Put, dtype: torch.dtype, t: int, n: int, d: int) -> None:
    x, index = torch.randn(t, d).to(dtype), index_of(n, t)
    expected = [x[i].tolist() if i >= 0 else [0.0] * d for i in index.tolist()]
    x = torch.cat([x, torch.full((1, d), torch.nan, dtype=dtype)])[:t]  # what lies behind is poison
    assert gather_rows(put(x), put(index)).tolist() == expected
    out = put(torch.full((n, d), torch.nan, dtype=dtype))
    assert gather_rows(put(x), put(index), out_ND=out).data_ptr() == out.data_ptr()
    assert out.tolist() == expected


def test_gather_leaves_poisoned_rows_out(put: Put, dtype: torch.dtype) -> None:
    x = torch.full((3, 20), torch.nan).to(dtype)
    assert bool((gather_rows(put(x), put(torch.tensor([-1, -1], dtype=torch.int32))) == 0).all())


def test_gather_counts_pairs(put: Put) -> None:
    x = torch.arange(12.0).view(4, 3)
    assert gather_rows(put(x), put(torch.tensor([7, 0, -1, 3], dtype=torch.int32)), 2)[:, 0].tolist() == [9, 0, 0, 3]


def test_gather_of_integers_and_strided_rows(put: Put) -> None:
    wide, index = torch.arange(60, dtype=torch.int32).view(5, 12), torch.tensor([4, 1])
    assert torch.equal(gather_rows(put(wide)[:, 3:8], put(index)).cpu(), wide[[4, 1], 3:8])
    assert torch.equal(gather_rows(put(wide).T, put(index)).cpu(), wide.T[[4, 1]])


@pytest.mark.parametrize(("t", "n", "d"), SHAPES)
def test_scatter(put: Put, dtype: torch.dtype, t: int, n: int, d: int) -> None:
    n = min(t, n)
    index = torch.randperm(t)[:n].to(torch.int32).masked_fill(torch.arange(n) % 4 == 2, -1)
    x = torch.randn(n, d).to(dtype).masked_fill(index[:, None] < 0, torch.inf)
    expected = torch.full((t, d), 5.0, dtype=dtype)
    for row, at in zip(x, index.tolist(), strict=True):
        if at >= 0:
            expected[at] = row
    wide = put(torch.full((t, d + 3), 5.0, dtype=dtype))
    scatter_rows(put(x), put(index), wide[:, 1 : d + 1])
    assert torch.equal(wide[:, 1 : d + 1].cpu(), expected)
    assert bool((wide[:, [0, d + 1, d + 2]] == 5.0).all())


@pytest.mark.parametrize("chunk", [None, 9])
def test_sorting_there_and_back(put: Put, dtype: torch.dtype, chunk: int | None) -> None:
    """Un-permuting what was permuted gives the rows, with padding between chunks or without."""
    bins, num_bins = entries("no power of two")
    bins = bins[:21]
    x = put(torch.randn(len(bins), 33).to(dtype))
    made = sort_by_bin(put(bins), num_bins, chunk)
    assert torch.equal(gather_rows(gather_rows(x, made.order), made.inverse_N), x)
