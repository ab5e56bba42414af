import numpy as np
import pytest

from smoe.clustering.objective import load_imbalance, load_limit, local_share, objective, token_imbalance
from smoe.clustering.problem import Balance, LayerSolution
from tests.clustering.layers import problem_of

# Row 0: 3 tokens with experts 0, 1; row 1: 1 token with experts 1, 2.
PROBLEM = problem_of([[3, 3, 0, 0], [0, 1, 1, 0]], [3, 1], (2, 2))
SOLUTION = LayerSolution(expert_device=np.array([0, 0, 1, 1], np.int16), row_device=np.array([0, 1], np.int16))


def test_objective_by_hand() -> None:
    # Of 4 tokens one is half remote; device 0 has 3 tokens and device 1 has 1, where 2 are due.
    assert objective(PROBLEM, SOLUTION, 0.25) == pytest.approx(0.25 * 2 + 0.75 * 0.5)


def test_shares_and_imbalances_by_hand() -> None:
    assert local_share(PROBLEM, SOLUTION) == 7 / 8
    assert load_imbalance(PROBLEM, SOLUTION.expert_device) == 7 / 4
    assert token_imbalance(PROBLEM, SOLUTION.row_device) == 3 / 2
    assert load_limit(PROBLEM, Balance(max_load=1.5)) == 6
    assert load_limit(PROBLEM, Balance()) is None


def test_nothing_is_balanced() -> None:
    empty = problem_of(np.zeros((0, 2)), [], (1, 1))
    nothing = LayerSolution(expert_device=np.array([0, 1], np.int16), row_device=np.zeros(0, np.int16))
    assert (objective(empty, nothing, 0.5), local_share(empty, nothing)) == (0.0, 1.0)
    assert (load_imbalance(empty, nothing.expert_device), token_imbalance(empty, nothing.row_device)) == (1.0, 1.0)
