"""What every solver owes: legal placements of any shape, its groups, its limit, and the same answer again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smoe.clustering.catalog import SOLVERS, make_solver
from smoe.clustering.cross_entropy import CrossEntropy, CrossEntropyConfig
from smoe.clustering.objective import load_imbalance, local_share
from smoe.clustering.problem import Balance, LayerProblem, Solver
from smoe.core.errors import ConfigError
from tests.clustering.layers import assert_legal, problem_of, random_problem

QUICK = CrossEntropyConfig(samples=24, rounds=6, starts=1, refined=2, kicks=3)
NAMES = [name for name in SOLVERS if name != "exact"]


def solver(name: str) -> Solver:
    return CrossEntropy(QUICK) if name == "cross-entropy" else make_solver(name)


@st.composite
def shapes(draw: st.DrawFn) -> LayerProblem:
    slots = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    experts, rows = sum(slots), draw(st.integers(0, 12))
    kind = draw(st.sampled_from(["any", "zeros", "one expert", "sparse"]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    counts = rng.integers(0, 5, (rows, experts))
    if kind == "zeros":
        counts[:] = 0
    elif kind == "one expert":
        counts[:, 1:] = 0
    elif kind == "sparse":
        counts *= rng.random(counts.shape) < 0.2
    group = None
    if draw(st.booleans()):
        group = rng.integers(0, draw(st.integers(1, 4)), experts)
    mass = np.maximum(counts.sum(axis=1), 1)
    return problem_of(counts, mass, slots, group, with_next=draw(st.booleans()))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(problem=shapes(), theta=st.sampled_from([0.001, 0.5, 0.9]), max_load=st.sampled_from([None, 1.0, 1.2]))
def test_any_shape_has_a_legal_answer(name: str, problem: LayerProblem, theta: float, max_load: float | None) -> None:
    solution = solver(name).solve(problem, Balance(theta=theta, max_load=max_load), 3)
    assert_legal(problem, solution)
    objectives = [entry[0] for entry in solution.history]
    if max_load is None:
        assert objectives == sorted(objectives, reverse=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_answer_again(name: str) -> None:
    problem = random_problem(4, rows=300, experts=16, slots=(4, 4, 4, 4))
    first, second = (solver(name).solve(problem, Balance(theta=0.3, max_load=1.2), 11) for _ in range(2))
    assert first.expert_device.tobytes() == second.expert_device.tobytes()
    assert first.row_device.tobytes() == second.row_device.tobytes()
    assert first.history == second.history


@pytest.mark.parametrize("name", NAMES)
def test_groups_stay_whole(name: str) -> None:
    group = np.array([0, 1, 2, 3, 4, 5] * 2)
    problem = random_problem(1, expert_group=group, slots=(4, 4, 4))
    device = solver(name).solve(problem, Balance(max_load=1.1), 0).expert_device
    assert all(len(set(device[group == index].tolist())) == 1 for index in range(6))


@pytest.mark.parametrize("name", NAMES)
def test_wide_groups_keep_to_their_devices(name: str) -> None:
    group = np.repeat([0, 1], 6)
    problem = random_problem(2, expert_group=group, slots=(3, 3, 3, 3))
    device = solver(name).solve(problem, Balance(), 0).expert_device
    assert sorted(len(set(device[group == index].tolist())) for index in range(2)) == [2, 2]


@pytest.mark.parametrize("name", NAMES)
def test_the_limit_is_kept(name: str) -> None:
    problem = random_problem(6, rows=200, experts=16, slots=(4, 4, 4, 4))
    device = solver(name).solve(problem, Balance(theta=0.01, max_load=1.15), 0).expert_device
    assert load_imbalance(problem, device) <= 1.15 + 1e-6


@pytest.mark.parametrize("theta", [0.001, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_none_is_above_cross_entropy(seed: int, theta: float) -> None:
    problem = random_problem(seed, rows=200, experts=16, slots=(4, 4, 4, 4))
    for max_load in (None, 1.1):
        balance = Balance(theta=theta, max_load=max_load)
        share = {name: local_share(problem, solver(name).solve(problem, balance, seed)) for name in NAMES}
        assert max(share, key=lambda name: share[name]) == "cross-entropy", share


def test_an_unknown_name_lists_those_known() -> None:
    with pytest.raises(ConfigError, match=r"solver: 'simplex' \(one of cross-entropy, contiguous, .*exact\)"):
        make_solver("simplex")


def test_names_are_those_they_are_found_by() -> None:
    assert all(make_solver(name).name == name for name in SOLVERS)
