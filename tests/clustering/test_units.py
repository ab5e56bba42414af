import numpy as np
import pytest

from smoe.clustering.units import in_order, nearest_placement, units_of
from tests.clustering.layers import problem_of


def units_with(groups: list[int], slots: tuple[int, ...]):  # type: ignore[no-untyped-def]
    counts = np.arange(2 * len(groups)).reshape(2, -1)
    return units_of(problem_of(counts, counts.sum(axis=1), slots, np.array(groups)))


def test_without_groups_each_expert_is_a_unit() -> None:
    problem = problem_of([[1, 2, 3]], [2], (2, 1))
    units = units_of(problem)
    assert units.kind.tolist() == [0, 0, 0]
    assert units.slots.tolist() == [[2, 1]]
    assert units.load.tolist() == [1, 2, 3]


def test_groups_that_fit_are_one_unit_each() -> None:
    units = units_with([0, 1, 0, 1, 2, 2, 3, 3], (4, 4))
    assert units.num_units == 4
    assert units.slots.tolist() == [[2, 2]]
    assert units.counts.toarray()[0].tolist() == [0 + 2, 1 + 3, 4 + 5, 6 + 7]
    assert units.expert_device(np.array([0, 1, 1, 0])).tolist() == [0, 1, 0, 1, 1, 1, 0, 0]


def test_a_group_larger_than_a_device_fills_whole_devices() -> None:
    units = units_with([0, 0, 0, 0, 1, 1, 1, 1], (2, 2, 2, 2))
    assert units.num_units == 8
    assert units.slots.tolist() == [[2, 2, 0, 0], [0, 0, 2, 2]]
    assert units.kind.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_uneven_devices_split_as_few_groups_as_they_must() -> None:
    units = units_with([0, 0, 1, 1, 2, 2, 3, 3], (3, 3, 2))
    whole = units.slots[0]
    assert whole.sum() == 3, "three of four groups stay whole"
    device = in_order(units)
    assert np.bincount(units.expert_device(device)).tolist() == [3, 3, 2]


@pytest.mark.parametrize("groups", [None, [0, 0, 0, 1, 1, 1]])
def test_nearest_placement_takes_the_greatest_sum(groups: list[int] | None) -> None:
    group = None if groups is None else np.array(groups)
    units = units_of(problem_of(np.ones((1, 6)), [3], (3, 3), group))
    wish = np.zeros((units.num_units, 2))
    wish[0, 1] = 1.0
    wish[-1, 0] = 1.0
    device = nearest_placement(units, wish)
    assert device[0] == 1
    assert device[-1] == 0
    assert np.bincount(units.expert_device(device)).tolist() == [3, 3]
