"""Lookup and alignment on a device against the references in numpy, over skewed and small batches."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from smoe.clustering import align as numpy_align
from smoe.clustering import lookup as numpy_lookup
from smoe.clustering.local import majority
from smoe.core.placement import RoutingTables
from smoe.kernels.routing.align import align, rank_in_group
from smoe.kernels.routing.bins import sort_by_bin
from smoe.kernels.routing.lookup import LayerTables, lookup, majority_device

Put = Callable[[Tensor], Tensor]
SHAPES = [  # (T, G)
    (0, 4),  # no rows
    (1, 1),  # one device: there is no second choice
    (3, 5),  # fewer rows than devices
    (50, 4),  # T is no multiple of G: padding
    (290, 3),  # several blocks, no power of two
]


def tables_of(vocab: int, num_devices: int) -> RoutingTables:
    """Two layers; few distinct confidences, so that ties occur."""
    random = np.random.default_rng(5)
    states = (2, num_devices + 1, num_devices + 1)
    device = random.integers(0, num_devices, (2, vocab)).astype(np.int16)
    return RoutingTables(
        token_device=device,
        token_second=((device + 1) % num_devices).astype(np.int16),
        token_confidence=(random.integers(0, 8, (2, vocab)) / 8).astype(np.float16),
        chain_device=random.integers(0, num_devices, states).astype(np.int16),
        chain_confidence=(random.integers(0, 8, states) / 8).astype(np.float16),
    )


@pytest.mark.parametrize("chain", [True, False])
@pytest.mark.parametrize(("t", "g"), SHAPES)
def test_lookup(put: Put, t: int, g: int, chain: bool) -> None:
    tables, layer = tables_of(37, g), 1
    ids = torch.randint(-1, 39, (t,))  # -1, 37 and 38 are unknown
    before2, before1 = torch.randint(0, g + 1, (2, t), dtype=torch.int32)
    names = ("token_device", "token_second", "token_confidence", "chain_device", "chain_confidence")
    on_device = LayerTables(*(put(torch.from_numpy(getattr(tables, name)[layer].copy())) for name in names))
    expected = numpy_lookup.lookup(tables, layer, ids.numpy(), before2.numpy(), before1.numpy(), chain=chain)
    for given in (ids, ids.to(torch.int32)):
        found = lookup(on_device, put(given), put(before2), put(before1), chain)
        assert found.device_T.tolist() == expected.device.tolist()
        assert found.second_T.tolist() == expected.second.tolist()
        assert found.confidence_T.tolist() == expected.confidence.tolist()
        assert found.by_token_T.tolist() == expected.by_token.tolist()


@pytest.mark.parametrize(("t", "k", "g"), [(0, 2, 3), (40, 5, 3), (7, 1, 9), (300, 2, 4)])
def test_majority(put: Put, t: int, k: int, g: int) -> None:
    device_TK = torch.randint(-1, g, (t, k), dtype=torch.int32)
    counts = np.stack([(device_TK.numpy() == device).sum(-1) for device in range(g)], -1)
    assert majority_device(put(device_TK), g).tolist() == majority(counts).tolist()


def wishes(t: int, g: int, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Destinations of a batch: even ones, all to the last device, or all to the first and from there to the second."""
    device = (
        torch.randint(0, g, (t,), dtype=torch.int32) if kind == "any" else torch.full((t,), g - 1, dtype=torch.int32)
    )
    second = torch.randint(0, g, (t,), dtype=torch.int32)
    if kind == "same second":
        device, second = torch.zeros_like(device), torch.full_like(second, min(1, g - 1))
    return device, second, torch.randint(0, 5, (t,)) / 5  # ties


@pytest.mark.parametrize("factor", [1.0, 1.3])  # equal chunks; ragged ones
@pytest.mark.parametrize("kind", ["any", "one device", "same second"])
@pytest.mark.parametrize(("t", "g"), SHAPES)
def test_align(put: Put, t: int, g: int, kind: str, factor: float) -> None:
    device, second, sure = wishes(t, g, kind)
    capacity = numpy_align.capacity_of(t, g, factor)
    expected = numpy_align.align(device.numpy(), second.numpy(), sure.numpy(), g, capacity)
    placed = align(put(device), put(second), put(sure), g, capacity)
    assert placed.dtype is torch.int32
    assert placed.tolist() == expected.tolist()
    made = sort_by_bin(placed, g, capacity if factor == 1.0 else None)
    order, sizes = numpy_align.permutation(expected, g)
    assert made.counts_B.tolist() == sizes.tolist()
    wanted = numpy_align.padded_chunks(expected, g) if factor == 1.0 else order
    assert made.order.tolist() == wanted.flatten().tolist()


def test_a_device_keeps_its_surest_rows(put: Put) -> None:
    device, second = torch.tensor([0, 0, 0, 0, 1, 2]), torch.tensor([1, 1, 1, 2, 0, 0])
    sure = torch.tensor([0.1, 0.9, 0.5, 0.9, 0.0, 0.3])
    # Rows 1 and 3 stay; row 2 goes to its second choice, and row 0, which finds that full, to the device with room.
    assert align(put(device), put(second), put(sure), 3, 2).tolist() == [2, 0, 1, 0, 1, 2]
    with pytest.raises(ValueError, match="capacity=1 on 3 devices does not hold 6 rows"):
        align(put(device), put(second), put(sure), 3, 1)


@pytest.mark.parametrize("t", [0, 1, 300])
def test_rank_is_a_permutation_of_each_group(put: Put, t: int) -> None:
    group, sure = torch.randint(-1, 3, (t,), dtype=torch.int32), torch.rand(t).half().float()
    rank = rank_in_group(put(group), put(sure)).cpu()
    for member in (group == g for g in range(-1, 3)):
        assert sorted(rank[member].tolist()) == list(range(int(member.sum())))
        assert bool((sure[member][rank[member].argsort()].diff() <= 0).all())
