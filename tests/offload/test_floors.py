import random

import pytest

from smoe.offload.floors import Floors, check_floor

LAYERS = (0, 3, 7)


@pytest.mark.parametrize(("floor", "num_slots"), [(0, 9), (4, 9), (1, 2)])
def test_floors_that_cannot_be(floor, num_slots):
    with pytest.raises(ValueError, match=rf"^floor: {floor} \(1 up to {num_slots} slots / 3 layers\)$"):
        check_floor(floor, num_slots, 3)


def test_what_is_owed_and_who_may_lose_are_what_counting_says():
    chance = random.Random(0)
    floors, held = Floors(LAYERS, 2), dict.fromkeys(LAYERS, 0)
    for _ in range(2000):
        layer = chance.choice(LAYERS)
        change = 1 if not held[layer] or chance.random() < 0.5 else -1
        floors.add(layer, change)
        held[layer] += change
        if chance.random() < 0.05:
            floors.move(chance.randint(1, 4))
        owed = {other: max(0, floors.floor - count) for other, count in held.items()}
        assert floors.owed == sum(owed.values())
        assert floors.held == held
        for other in LAYERS:
            assert floors.may_lose_to(other) == [i for i in LAYERS if i == other or held[i] > floors.floor]
            for num_free in range(9):
                assert floors.may_take_free(other, num_free) == (num_free > sum(owed.values()) - owed[other])
        assert floors.above() == [i for i in LAYERS if held[i] > floors.floor]
        assert not floors.problems(held, num_free=floors.owed)


def test_problems_are_named():
    floors = Floors(LAYERS, 2)
    floors.add(3, 1)
    assert floors.problems({3: 1}, 4) == ["floors of layers are not covered by free slots"]
    assert floors.problems({3: 2}, 5) == ["slots held by layers are miscounted"]
