from dataclasses import replace

import numpy as np
import pytest

from smoe.clustering.problems import layer_problem
from smoe.core.errors import ConfigError
from smoe.core.route_trace import RouteTrace


def make_trace(token_ids: list[int], layers: list[list[list[int]]], num_experts: int) -> RouteTrace:
    trace = RouteTrace(
        fingerprint="test",
        num_experts=num_experts,
        top_k=len(layers[0][0]),
        layers=tuple(range(len(layers))),
        token_ids=np.array(token_ids, dtype=np.int32),
        sequence_start=np.array([0, len(token_ids)]),
        phase=np.zeros(len(token_ids), dtype=np.uint8),
        expert_ids=np.array(layers, dtype=np.int16),
    )
    trace.validate()
    return trace


def test_rows_are_token_ids_ascending() -> None:
    trace = make_trace([9, 4, 9], [[[0, 1], [2, 3], [1, 2]]], 4)
    problem = layer_problem(trace, 0, (2, 2))
    assert problem.row_token is not None
    assert problem.row_token.tolist() == [4, 9]
    assert problem.counts.toarray().tolist() == [[0, 0, 1, 1], [1, 2, 1, 0]]
    assert problem.mass.tolist() == [1, 2]
    assert problem.next_counts is None
    assert problem.expert_load.tolist() == [1, 2, 2, 1]


def test_unknown_tokens_share_a_row_by_their_set() -> None:
    trace = make_trace([-1, 5, -1, -1], [[[1, 0], [2, 3], [0, 1], [1, 3]]], 4)
    problem = layer_problem(trace, 0, (2, 2))
    assert problem.row_token is not None
    assert problem.row_token.tolist() == [5, -1, -1]
    assert problem.counts.toarray().tolist() == [[0, 0, 1, 1], [2, 2, 0, 0], [0, 1, 0, 1]]
    assert problem.mass.tolist() == [1, 2, 1]


def test_many_experts_and_many_slots_do_not_mix_sets_up() -> None:
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(30_000)[:12] for _ in range(50)])
    trace = make_trace([-1] * 100, [np.concatenate([ids, ids[:, ::-1]]).tolist()], 30_000)
    problem = layer_problem(trace, 0, (15_000, 15_000))
    assert problem.num_rows == 50
    assert set(problem.counts.data.tolist()) == {2}


def test_next_counts_by_token() -> None:
    trace = make_trace([0, 1], [[[0, 1], [1, 2]], [[2, 0], [0, 1]]], 3)
    problem = layer_problem(trace, 0, (2, 1))
    assert problem.next_counts is not None
    assert problem.next_counts.tolist() == [[1, 0, 1], [2, 1, 1], [1, 1, 0]]


@pytest.mark.parametrize("slots", [(), (4,), (2, 2), (3, 0), (2, 2, -1)])
def test_slots_that_are_not_the_experts(slots: tuple[int, ...]) -> None:
    trace = make_trace([0], [[[0, 1]]], 3)
    with pytest.raises(ConfigError, match=r"slots_of_device: .*3 experts in all"):
        layer_problem(trace, 0, slots)


def test_groups_of_another_number_of_experts() -> None:
    trace = make_trace([0], [[[0, 1]]], 3)
    with pytest.raises(ConfigError, match=r"expert_group: 'shape \[2\]' \(\[3\]\)"):
        layer_problem(trace, 0, (2, 1), np.array([0, 1]))


def test_a_trace_of_no_tokens_is_a_problem_of_no_rows() -> None:
    trace = make_trace([0], [[[0, 1]]], 3)
    empty = replace(
        trace,
        token_ids=trace.token_ids[:0],
        phase=trace.phase[:0],
        expert_ids=trace.expert_ids[:, :0],
        sequence_start=np.zeros(1, dtype=np.int64),
    )
    assert layer_problem(empty, 0, (2, 1)).counts.shape == (0, 3)
