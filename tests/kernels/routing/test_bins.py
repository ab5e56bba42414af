"""Entries sorted by bin: against plain Python, and what must hold of any answer."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from smoe.kernels.routing.bins import Bins, sort_by_bin
from tests.kernels.routing.cases import KINDS, entries


def by_hand(bins: list[int], num_bins: int, chunk: int | None) -> Bins:
    members = [[n for n, found in enumerate(bins) if found == b] for b in range(num_bins)]
    starts = [sum(map(len, members[:b])) if chunk is None else b * chunk for b in range(num_bins + 1)]
    order, inverse = [-1] * (len(bins) if chunk is None else num_bins * chunk), [-1] * len(bins)
    for start, of_bin in zip(starts, members, strict=False):
        for rank, entry in enumerate(of_bin if chunk is None else of_bin[:chunk]):
            order[start + rank], inverse[entry] = entry, start + rank
    return Bins(*(torch.tensor(v, dtype=torch.int32) for v in ([len(m) for m in members], starts, order, inverse)))


@pytest.mark.parametrize("chunk", [None, 11, 50])  # back to back; some do not fit; padding
@pytest.mark.parametrize("kind", KINDS)
def test_against_plain_python(put: Callable[[Tensor], Tensor], kind: str, chunk: int | None) -> None:
    bins, num_bins = entries(kind)
    made = sort_by_bin(put(bins), num_bins, chunk)
    for name, actual, expected in zip(Bins._fields, made, by_hand(bins.tolist(), num_bins, chunk), strict=True):
        assert actual.dtype is torch.int32
        assert torch.equal(actual.cpu(), expected), name


@pytest.mark.parametrize("kind", KINDS)
def test_order_is_a_stable_partial_permutation(put: Callable[[Tensor], Tensor], kind: str) -> None:
    bins, num_bins = entries(kind)
    counts, offsets, order, inverse = (t.cpu().long() for t in sort_by_bin(put(bins), num_bins))
    used = order[order >= 0]
    assert int(counts.sum()) == int(offsets[-1]) == len(used)
    assert torch.equal(inverse[used], torch.arange(len(used)))
    assert bool(((inverse >= 0) == ((bins >= 0) & (bins < num_bins))).all())
    assert bool((bins[used].diff() >= 0).all())
    assert bool((used.diff()[bins[used].diff() == 0] > 0).all())


def test_pairs_are_numbered_row_by_row(put: Callable[[Tensor], Tensor]) -> None:
    ids_TK = torch.tensor([[2, 0], [-1, 2], [0, 1]], dtype=torch.int16)
    assert sort_by_bin(put(ids_TK), 3).order.tolist() == [1, 4, 5, 0, 3, -1]
    assert sort_by_bin(put(ids_TK.T), 3).order.tolist() == [2, 3, 5, 0, 4, -1]  # a view with strides
