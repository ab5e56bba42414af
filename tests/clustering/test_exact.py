from itertools import product

import numpy as np
import pytest

from smoe.clustering.cross_entropy import CrossEntropy
from smoe.clustering.exact import Exact
from smoe.clustering.objective import load_imbalance, load_limit, objective
from smoe.clustering.problem import Balance, LayerProblem, LayerSolution
from smoe.core.errors import ConfigError
from tests.clustering.layers import (
    all_placements,
    assert_legal,
    free_value,
    free_values,
    problem_of,
    random_problem,
)

TINY = [(8, (4, 4)), (6, (2, 2, 2)), (7, (3, 4)), (8, (3, 3, 2))]
SMALL = [*TINY, (12, (4, 4, 4)), (12, (6, 6)), (11, (4, 4, 3)), (9, (3, 3, 3))]
# So little that it only settles ties.
FREE = Balance(theta=1e-6)


def small_problem(index: int) -> LayerProblem:
    experts, slots = SMALL[index % len(SMALL)]
    return random_problem(index, rows=10, experts=experts, slots=slots, top_k=2)


def loads_of(problem: LayerProblem, placements: np.ndarray) -> np.ndarray:
    """[placements] activations of the busiest device."""
    hot = placements[:, :, None] == np.arange(problem.num_devices)
    return np.asarray((hot * problem.expert_load[:, None]).sum(axis=1).max(axis=1))


@pytest.mark.parametrize("index", range(len(TINY)))
def test_exact_is_the_best_of_all_placements(index: int) -> None:
    problem = small_problem(index)
    best = free_values(problem, all_placements(problem.slots_of_device)).max()
    solution = Exact().solve(problem, FREE, 0)
    assert_legal(problem, solution)
    assert free_value(problem, solution.expert_device) == best


def test_exact_is_the_best_within_a_load_limit() -> None:
    problem = small_problem(1)
    balance = Balance(theta=1e-6, max_load=1.15)
    placements = all_placements(problem.slots_of_device)
    loads, limit = loads_of(problem, placements), load_limit(problem, balance)
    assert limit is not None
    assert loads.min() <= limit < loads.max()
    solution = Exact().solve(problem, balance, 0)
    assert load_imbalance(problem, solution.expert_device) <= 1.15 + 1e-6
    assert free_value(problem, solution.expert_device) == free_values(problem, placements)[loads <= limit].max()


def test_a_limit_that_none_keeps_is_kept_as_nearly_as_can_be() -> None:
    problem = problem_of([[9, 5, 1, 2], [2, 5, 1, 2]], [8, 5], (2, 2))
    solution = Exact().solve(problem, Balance(theta=1e-6, max_load=1.0), 0)
    # Loads 11, 10, 2, 4: half of the 27 is 13.5.
    assert sorted(np.bincount(solution.expert_device, problem.expert_load).tolist()) == [13, 14]


def test_exact_weighs_token_balance() -> None:
    problem = random_problem(3, rows=6, experts=6, slots=(3, 3), top_k=2)
    balance = Balance(theta=0.3)
    exact = Exact().solve(problem, balance, 0)
    best = min(
        objective(problem, LayerSolution(expert_device=placement, row_device=np.array(rows)), 0.3)
        for placement in all_placements((3, 3))
        for rows in product(range(2), repeat=6)
    )
    assert objective(problem, exact, 0.3) == pytest.approx(best)


@pytest.mark.parametrize("max_load", [None, 1.2])
@pytest.mark.parametrize("index", range(50))
def test_cross_entropy_is_within_a_hundredth_of_the_optimum(index: int, max_load: float | None) -> None:
    problem = small_problem(index)
    balance = Balance(theta=1e-6, max_load=max_load)
    placements = all_placements(problem.slots_of_device)
    loads = loads_of(problem, placements)
    limit = max(load_limit(problem, balance) or np.inf, loads.min())
    device = CrossEntropy().solve(problem, balance, index).expert_device
    assert loads_of(problem, device[None])[0] <= limit * (1 + 1e-6)
    assert free_value(problem, device) >= 0.99 * free_values(problem, placements)[loads <= limit].max()


def test_a_large_problem_is_refused_in_one_line() -> None:
    problem = random_problem(0, rows=100, experts=16, slots=(4, 4, 4, 4))
    with pytest.raises(ConfigError, match=r"solver: 'exact with 1820 sets of experts for 100 rows' \(at most 40000"):
        Exact().solve(problem, FREE, 0)
