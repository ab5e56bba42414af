from itertools import product

import numpy as np
import pytest

from smoe.clustering.row_trades import row_value, shake_rows
from smoe.clustering.tokens import assign_rows, fine_of, token_prices, unseen_device
from tests.clustering.layers import problem_of, random_problem


def worth(local: np.ndarray, mass: np.ndarray, fine: float, device: np.ndarray) -> float:
    tokens = np.bincount(device, mass, local.shape[1])
    here = local[np.arange(len(local)), device].sum()
    return float(here - fine * np.abs(tokens - mass.sum() / local.shape[1]).sum())


def test_a_small_fine_leaves_every_row_on_its_best_device() -> None:
    local = np.array([[3.0, 1.0], [2.0, 0.0], [4.0, 3.0]])
    assert assign_rows(local, np.ones(3), 1e-6).tolist() == [0, 0, 0]


def test_a_great_fine_balances_at_the_least_loss() -> None:
    local = np.array([[3.0, 1.0], [2.0, 0.0], [4.0, 3.0], [2.0, 1.5]])
    assert assign_rows(local, np.ones(4), 100.0).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("fine", [0.05, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("seed", range(6))
def test_within_a_row_of_the_best_assignment(seed: int, fine: float) -> None:
    rng = np.random.default_rng(seed)
    local = rng.integers(0, 6, (7, 3)).astype(np.float64)
    mass = np.ones(7)
    best = max(worth(local, mass, fine, np.array(device)) for device in product(range(3), repeat=7))
    assert worth(local, mass, fine, assign_rows(local, mass, fine)) >= best - max(2 * fine, 1.0)


def test_thousands_of_rows_come_out_level() -> None:
    problem = random_problem(0, rows=3000)
    device = np.repeat([0, 1, 2], 4)
    tokens = np.bincount(assign_rows(problem.local(device), problem.mass, 2.0), problem.mass)
    assert tokens.max() / tokens.mean() < 1.005


def test_prices_stay_within_the_fine() -> None:
    local = np.array([[5.0, 0.0], [5.0, 0.0]])
    assert np.abs(token_prices(local, np.ones(2), 0.25)).max() <= 0.25


def test_the_fine_is_the_programmes_ratio() -> None:
    assert fine_of(300.0, 100.0, 0.25) == pytest.approx(0.25 / 0.75 * 3)


def test_no_rows_and_one_device() -> None:
    assert assign_rows(np.zeros((0, 3)), np.zeros(0), 1.0).tolist() == []
    assert assign_rows(np.ones((4, 1)), np.ones(4), 1.0).tolist() == [0, 0, 0, 0]


def test_unseen_tokens_go_with_the_rare_ones() -> None:
    problem = problem_of([[200, 0], [0, 2], [1, 2]], [200, 2, 3], (1, 1))
    assert unseen_device(problem, np.array([0, 1])) == 1


def test_unseen_tokens_where_nothing_is_rare() -> None:
    problem = problem_of([[200, 0], [0, 20]], [200, 20], (1, 1))
    assert unseen_device(problem, np.array([0, 1])) == 0


def test_few_heavy_rows_are_assigned_as_well_as_any() -> None:
    """Every assignment of eight rows to three devices, against ours: tokens that cannot be divided."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        mass = rng.integers(1, 30, 8).astype(np.float64)
        local = rng.dirichlet(np.full(3, 0.5), 8) * mass[:, None] * 2
        fine = float(rng.choice([0.3, 2.0]))
        found = shake_rows(assign_rows(local, mass, fine), local, mass, fine, 64, rng)
        best = max(row_value(np.array(each), local, mass, fine) for each in product(range(3), repeat=8))
        assert row_value(found, local, mass, fine) >= best - 1e-9 * abs(best)
