"""Places and tiles: every pair with a slot lies in one group, and a launch has tiles enough for any distribution."""

import pytest
import torch

from smoe.kernels.routing.launch import INTERPRETED
from smoe.kernels.triton_moe.tiles import max_tiles, place_pairs, tiling
from tests.kernels.triton_moe.cases import CASES, F32, Put, route


@pytest.mark.parametrize("name", CASES)
def test_groups_are_the_pairs_by_slot(put: Put, name: str) -> None:
    case = CASES[name]
    slots = put(route(case))
    places = place_pairs(slots, case.slots)
    groups = places.groups(case.slots)
    flat = slots.flatten().tolist()
    assert [slot for slot, _, _ in groups] == sorted({slot for slot in flat if slot >= 0})
    for slot, place, pair in groups:
        assert pair.tolist() == [n for n, s in enumerate(flat) if s == slot]
        assert places.order_N[place].tolist() == (pair.tolist() if places.is_sorted else [slot] * len(pair))


@pytest.mark.skipif(INTERPRETED, reason="of the host alone; sorting in the interpreter takes a minute")
@pytest.mark.parametrize("block_m", [1, 16, 32])
def test_tiles_are_enough_for_any_distribution(block_m: int) -> None:
    random = torch.Generator().manual_seed(1)
    for _ in range(200):
        num_slots, rows = (int(n) for n in torch.randint(1, 60, (2,), generator=random))
        high = int(torch.randint(1, num_slots + 1, (), generator=random))
        slots = torch.randint(-1, high, (rows, 3), generator=random, dtype=torch.int32)
        places = place_pairs(slots, num_slots)
        needed = sum(-(-len(place) // block_m) for _, place, _ in places.groups(num_slots))
        if places.is_sorted:
            assert needed <= max_tiles(places, num_slots, block_m)
        else:
            assert max_tiles(places, num_slots, block_m) == len(places.order_N)


def test_the_inner_block_is_one_for_a_dtype() -> None:
    """It decides in what order a row is added up."""
    for dtype in (F32, torch.bfloat16):
        made = [tiling(pairs, 8, dtype) for pairs in (1, 100, 10_000)]
        assert len({tile.block_k for tile in made}) == 1
        assert max(tile.block_m for tile in made) <= 32
