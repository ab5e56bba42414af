from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from smoe.clustering.cross_entropy import CrossEntropy, CrossEntropyConfig
from smoe.clustering.objective import load_imbalance, local_share, objective, token_imbalance
from smoe.clustering.problem import Balance
from smoe.core.errors import ConfigError
from tests.clustering.layers import problem_of, random_problem

QUICK = CrossEntropyConfig(samples=32, rounds=10, kicks=4)
ALONE = CrossEntropyConfig(refine=False, samples=64)


def test_two_worlds_are_told_apart() -> None:
    counts = np.zeros((40, 16), dtype=int)
    hidden = np.random.default_rng(0).permutation(np.repeat([0, 1], 8))
    for row in range(40):
        counts[row, np.flatnonzero(hidden == row % 2)[: 3 + row % 5]] = 1 + row % 3
    problem = problem_of(counts, counts.max(axis=1), (8, 8))
    for config in (ALONE, CrossEntropyConfig()):
        solution = CrossEntropy(config).solve(problem, Balance(theta=0.001), 0)
        assert local_share(problem, solution) == 1.0


def test_history_ends_with_the_answer_and_never_worsens() -> None:
    problem = random_problem(3, rows=150, experts=16, slots=(4, 4, 4, 4))
    solution = CrossEntropy(ALONE).solve(problem, Balance(theta=0.2), 0)
    objectives = [entry[0] for entry in solution.history]
    assert len(objectives) > 3
    assert objectives == sorted(objectives, reverse=True)
    assert objectives[0] > objectives[-1]
    answer = (
        objective(problem, solution, 0.2),
        local_share(problem, solution),
        load_imbalance(problem, solution.expert_device),
    )
    assert solution.history[-1] == pytest.approx(answer)


def test_refinement_does_not_worsen() -> None:
    for seed in range(3):
        problem = random_problem(seed, rows=150, experts=16, slots=(4, 4, 4, 4))
        share = [
            local_share(problem, CrossEntropy(config).solve(problem, Balance(theta=0.001), seed))
            for config in (ALONE, replace(ALONE, refine=True))
        ]
        assert share[1] >= share[0]


def test_theta_trades_locality_for_even_tokens() -> None:
    # Rows 0 to 59 all go by experts 0 to 3, in ever other amounts; the rest by some of the others.
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 3, (90, 12))
    counts[:60, :4] += rng.integers(4, 9, (60, 4))
    problem = problem_of(counts, counts.sum(axis=1) / 3, (4, 4, 4))
    found = [CrossEntropy(QUICK).solve(problem, Balance(theta=theta), 0) for theta in (0.001, 0.2, 0.6)]
    imbalance = [token_imbalance(problem, solution.row_device) for solution in found]
    shares = [local_share(problem, solution) for solution in found]
    assert imbalance == sorted(imbalance, reverse=True)
    assert shares == sorted(shares, reverse=True)
    assert imbalance[0] > imbalance[-1]
    assert imbalance[-1] < 1.02


def test_a_sketch_of_the_rows_does_for_many() -> None:
    problem = random_problem(0, rows=2000, experts=16, slots=(4, 4, 4, 4))
    balance = Balance(theta=0.001)
    whole, part = (
        local_share(problem, CrossEntropy(replace(QUICK, rows=rows)).solve(problem, balance, 0)) for rows in (4000, 200)
    )
    assert part >= 0.99 * whole


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"samples": 1}, r"samples: 1 \(2 or more\)"),
        ({"elite_share": 0.0}, r"elite_share: 0.0 \(above 0, up to 1\)"),
        ({"smoothing": 1.5}, r"smoothing: 1.5 \(above 0, up to 1\)"),
        ({"kicks": -1}, r"kicks: -1 \(0 or more\)"),
    ],
)
def test_configurations_that_cannot_be(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CrossEntropyConfig(**values)
