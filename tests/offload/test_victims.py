"""Who gets a slot, and who loses one."""

import pytest

from tests.offload.residencies import load, make


@pytest.mark.parametrize("floor", [0, 2])
def test_floor_out_of_range(floor):
    with pytest.raises(ValueError, match=rf"^floor: {floor} \(1 up to 3 slots / 2 layers\)$"):
        make(3, (0, 1), floor=floor)


def test_pinned_and_in_flight_slots_are_never_victims():
    residency = make(2)
    pinned = residency.try_reserve(0, 0)
    residency.commit(pinned)
    in_flight = residency.try_reserve(0, 1)
    assert residency.try_reserve(0, 2) is None
    residency.unpin(pinned)
    assert residency.try_reserve(0, 2).slot == pinned.slot
    assert residency.try_reserve(0, 3) is None
    residency.fail(in_flight)
    assert residency.try_reserve(0, 3).slot == in_flight.slot
    residency.check_integrity()


def test_free_slots_owed_to_a_floor_are_not_handed_to_others():
    residency = make(4, (0, 1), floor=1)
    for expert in range(3):
        load(residency, 0, expert)
    assert residency.uses.stats().evictions == 0
    load(residency, 0, 3)
    assert residency.uses.stats().evictions == 1, "the fourth slot belongs to layer 1"
    load(residency, 1, 0)
    assert residency.uses.stats().evictions == 1


def test_a_layer_above_its_floor_loses_to_one_that_wants_more():
    residency = make(4, (0, 1), floor=1)
    for expert in range(3):
        load(residency, 0, expert)
    for expert in range(3):
        load(residency, 1, expert)
    assert set(residency.resident(0)) == {2}, "oldest first, down to the floor"
    assert set(residency.resident(1)) == {0, 1, 2}
    load(residency, 1, 3)
    assert set(residency.resident(0)) == {2}
    assert set(residency.resident(1)) == {1, 2, 3}
    residency.check_idle()


def test_shrinking_keeps_the_young_and_serves_floors():
    residency = make(6, (0, 1), floor=1)
    for expert in range(5):
        load(residency, 0, expert)
    taken = residency.resize(4, floor=2)
    residency.check_idle()
    assert set(residency.resident(0)) == {3, 4}, "two slots are free for layer 1, two went"
    assert len(taken) == 2
    assert residency.try_reserve(1, 0) is not None
    assert residency.try_reserve(1, 1) is not None


def test_a_new_floor_counts_at_once():
    residency = make(6, (0, 1), floor=1)

    for layer in (0, 1):
        for expert in range(3):
            load(residency, layer, expert)
    load(residency, 1, 3)
    assert set(residency.resident(0)) == {1, 2}, "above its floor it loses to the other"
    assert residency.resize(6, floor=2) == []
    load(residency, 1, 4)
    assert set(residency.resident(0)) == {1, 2}, "and not at its new one"
    residency.check_idle()
