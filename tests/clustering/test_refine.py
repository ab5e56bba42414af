import numpy as np
import pytest

from smoe.clustering.refine import SwapSearch
from smoe.clustering.units import in_order, units_of
from tests.clustering.layers import all_placements, free_value, problem_of, random_problem

PRICE = np.array([0.4, -0.3, 0.1])


def value_of(search: SwapSearch, device: np.ndarray, price: np.ndarray | None) -> float:
    """The value of a placement, from nothing."""
    fresh = SwapSearch(search.units)
    fresh.start(device, price)
    return fresh.value


@pytest.mark.parametrize("price", [None, PRICE])
@pytest.mark.parametrize("seed", range(4))
def test_every_swap_gain_is_that_of_recomputing(seed: int, price: np.ndarray | None) -> None:
    units = units_of(random_problem(seed))
    search = SwapSearch(units)
    start = np.random.default_rng(seed).permutation(in_order(units))
    search.start(start, price)
    bound = search.move_gains()
    before = search.value
    for a in range(units.num_units):
        for b in range(a + 1, units.num_units):
            if start[a] == start[b]:
                continue
            swapped = start.copy()
            swapped[a], swapped[b] = swapped[b], swapped[a]
            gain = value_of(search, swapped, price) - before
            assert search.swap_gain(a, b) == pytest.approx(gain, abs=1e-9)
            # What lets a descent pass over most pairs.
            assert gain <= bound[a, start[b]] + bound[b, start[a]] + 1e-9
    assert search.value == before


@pytest.mark.parametrize("price", [None, PRICE])
def test_a_hundred_swaps_leave_no_error_behind(price: np.ndarray | None) -> None:
    problem = random_problem(5)
    units = units_of(problem)
    search = SwapSearch(units)
    search.start(in_order(units), price)
    rng = np.random.default_rng(0)
    for _ in range(100):
        a, b = rng.integers(units.num_units, size=2)
        if search.device[a] != search.device[b]:
            search.swap(int(a), int(b))
    assert search.value == pytest.approx(value_of(search, search.device, price), abs=1e-9)
    assert search.device_load.tolist() == np.bincount(search.device, units.load).tolist()
    if price is None:
        assert search.value == free_value(problem, search.device)


def test_move_gain_is_the_value_of_moving_one_expert() -> None:
    problem = problem_of([[2, 1, 0, 3], [1, 1, 1, 0]], [2, 1], (2, 2))
    search = SwapSearch(units_of(problem))
    search.start(np.array([0, 0, 1, 1]))
    assert search.value == 3 + 2
    # Expert 3 to device 0: 6 and 2. Expert 0 to device 1: 5 and 2.
    assert search.move_gains().tolist() == [[0, 2], [0, 1 + 0], [1, 0], [3, 0]]


@pytest.mark.parametrize("seed", range(5))
def test_a_descent_ends_where_no_swap_gains(seed: int) -> None:
    units = units_of(random_problem(seed))
    search = SwapSearch(units)
    search.start(in_order(units))
    search.descend()
    for a in range(units.num_units):
        for b in range(a + 1, units.num_units):
            if search.device[a] != search.device[b]:
                assert search.swap_gain(a, b) <= 1e-6


@pytest.mark.parametrize("max_load", [1.02, 1.1, 1.3])
@pytest.mark.parametrize("seed", range(4))
def test_a_start_above_the_limit_ends_below_it(seed: int, max_load: float) -> None:
    problem = random_problem(seed, experts=8, slots=(4, 4))
    units = units_of(problem)
    limit = max_load * units.load.sum() / 2
    placements = all_placements(problem.slots_of_device)
    loads = np.array([np.bincount(placement, units.load).max() for placement in placements])
    assert loads.min() <= limit, "a problem that has a placement within the limit"
    search = SwapSearch(units, limit=limit)
    search.start(placements[int(loads.argmax())])
    search.descend()
    # One swap at a time may stop short of a limit that is nearly the best there is, and never goes up.
    assert search.excess() <= max(0.0, loads.max() - limit)
    if max_load > 1.05:
        assert search.excess() == 0.0


def test_a_descent_stays_within_the_limit() -> None:
    units = units_of(random_problem(1))
    limit = 1.1 * units.load.sum() / 3
    search = SwapSearch(units, limit=limit)
    search.start(in_order(units))
    search.keep_limit()
    assert search.excess() == 0.0
    search.descend()
    assert search.device_load.max() <= limit * (1 + 1e-6)
    free = SwapSearch(units)
    free.start(in_order(units))
    free.descend()
    assert free.device_load.max() > limit, "or the limit tests nothing"


def test_a_limit_that_cannot_be_kept_is_kept_as_nearly_as_swaps_can() -> None:
    problem = problem_of([[9, 1, 1, 1]], [4], (2, 2))
    search = SwapSearch(units_of(problem), limit=6.0)
    search.start(np.array([0, 0, 1, 1]))
    search.descend()
    assert search.device_load.max() == 10.0
