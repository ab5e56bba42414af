"""What goes where when a placement takes the place of another."""

from collections import Counter

import numpy as np
import pytest

from smoe.collectives.expert_moves import expert_moves, moves_by_place
from smoe.core.placement import Placement
from smoe.core.placement_maps import diff
from tests.collectives.placements import random_placement

LAYERS = (1, 2, 5)


def pair(seed: int) -> tuple[Placement, Placement]:
    devices = seed % 4 + 1
    return tuple(random_placement(100 * seed + i, experts=8, layers=LAYERS, devices=devices) for i in range(2))


@pytest.mark.parametrize("seed", range(20))
def test_moves_bring_what_is_lacking_from_holders_and_nothing_else(seed: int) -> None:
    before, after = pair(seed)
    moves = expert_moves(before, after)
    held = before.on_device.copy()
    for move in moves:
        index = LAYERS.index(move.layer)
        assert before.on_device[index, move.expert, move.source]
        assert not held[index, move.expert, move.target]
        held[index, move.expert, move.target] = True
    assert (held >= after.on_device).all()
    assert len(moves) == diff(before, after).fetched
    assert not expert_moves(after, after)


def test_targets_are_spread_over_the_holders() -> None:
    """Expert 0 is on devices 0 and 1; 2 to 5 get it."""
    before = Placement(
        fingerprint="f",
        num_experts=6,
        layers=(0,),
        slots_of_device=(1, 2, 1, 1, 1, 1),
        slot2expert=np.array([[0, 0, 1, 2, 3, 4, 5]], dtype=np.int32),
    )
    after = Placement(
        fingerprint="f",
        num_experts=6,
        layers=(0,),
        slots_of_device=(1, 1, 2, 2, 2, 2),
        slot2expert=np.array([[0, 1, 0, 2, 0, 3, 0, 4, 0, 5]], dtype=np.int32),
    )
    moves = expert_moves(before, after)
    assert [(move.expert, move.target) for move in moves] == [(0, 2), (0, 3), (0, 4), (0, 5)]
    assert Counter(move.source for move in moves) == {0: 2, 1: 2}


def test_each_place_sends_what_the_others_get() -> None:
    moves, size = expert_moves(*pair(3)), 4
    by_place = [moves_by_place(moves, place, size) for place in range(size)]
    for place, (sent, _) in enumerate(by_place):
        assert [by_place[other][1][place] for other in range(size)] == sent
    assert {move for sent, _ in by_place for part in sent for move in part} == set(moves)
    assert sum(len(part) for _, got in by_place for part in got) == len(moves) > 0
