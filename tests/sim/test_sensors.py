import numpy as np
import pytest

from smoe.core.route_trace import DECODE, RouteTrace
from smoe.offload.policies.balance import LinearSides
from smoe.offload.policies.utility_states import Calibrated, Fixed
from smoe.sim.sensors import changes, hot_by_balance, hot_in_hindsight, mutual_information, right, states_after
from smoe.sim.windowed import window_counts, windowed


def trace(lengths=(5, 3, 1), layers=(1, 4), experts=5, k=2):
    rng = np.random.default_rng(1)
    tokens = sum(lengths)
    ids = np.argsort(rng.random((len(layers), tokens, experts)), axis=-1)[..., :k].astype(np.int16)
    return RouteTrace(
        fingerprint="f",
        num_experts=experts,
        top_k=k,
        layers=layers,
        token_ids=np.arange(tokens, dtype=np.int32),
        sequence_start=np.cumsum([0, *lengths]).astype(np.int64),
        phase=np.full(tokens, DECODE, np.uint8),
        expert_ids=ids,
        expert_weights=np.full(ids.shape, 0.5, np.float16),
        labels=tuple("abc"),
    )


def test_windows_are_of_one_sequence_each_and_leave_out_the_rest():
    whole = trace()
    cut = windowed(whole, 2)
    cut.validate()
    assert cut.token_ids.tolist() == [0, 1, 2, 3, 5, 6]
    assert cut.sequence_start.tolist() == [0, 2, 4, 6]
    assert (cut.expert_ids == whole.expert_ids[:, [0, 1, 2, 3, 5, 6]]).all()
    assert cut.expert_weights is not None
    assert cut.expert_weights.shape == (2, 6, 2)
    assert windowed(whole, 6).num_sequences == 0


def test_counts_are_rows_by_window_layer_and_expert():
    cut = windowed(trace(), 2)
    counts = window_counts(cut)
    assert counts.shape == (3, 2, 5)
    for window in range(3):
        for layer in range(2):
            ids = cut.expert_ids[layer, 2 * window : 2 * window + 2].ravel()
            assert counts[window, layer].tolist() == [int((ids == e).sum()) for e in range(5)]


def test_states_after_each_window():
    counts = np.array([[[6, 1]], [[6, 1]], [[0, 1]]])
    assert states_after(counts, Fixed()).tolist() == [[[1, 0]], [[2, 0]], [[1, 0]]]
    assert states_after(counts, Fixed(1, 1)).tolist() == [[[1, 1]], [[2, 1]], [[1, 1]]]
    assert states_after(counts, Calibrated()).tolist() == [[[1, 0]], [[2, 0]], [[1, 0]]]
    assert changes(states_after(counts, Fixed())) == 1.0
    assert changes(counts) == 0.5


def test_what_one_number_tells_of_another():
    x = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    assert mutual_information(x, x) == pytest.approx(2.0)
    assert mutual_information(x // 2, x) == pytest.approx(1.0)
    assert mutual_information(x, x // 2) == pytest.approx(1.0)
    assert mutual_information(x, np.array([0, 1] * 4)) == pytest.approx(0.0, abs=1e-12)
    assert mutual_information(np.zeros_like(x), x) == pytest.approx(0.0, abs=1e-12)


def test_shares_told_right():
    told, truth = np.array([1, 1, 0, 0, 0], bool), np.array([1, 0, 1, 0, 0], bool)
    assert right(told, truth) == {"accuracy": 0.6, "base": 0.6, "recall": 0.5, "precision": 0.5}
    nobody = np.zeros(5, bool)
    assert right(nobody, nobody) == {"accuracy": 1.0, "base": 1.0, "recall": 0.0, "precision": 0.0}


def test_who_is_hot_is_who_the_balance_puts_into_slots():
    sides = LinearSides(g0=0.0, g1=1.0, tile=1, m0=0.0, m1=1.0)
    counts = np.array([[[4, 2, 1, 1]]])
    # 4 rows against 4: the first one alone.
    assert hot_in_hindsight(counts, sides).tolist() == [[[True, False, False, False]]]
    # Utilities that are wrong about it: 3 and 1 rows fast, 4 + 1 slow, or all; the first is sooner.
    assert hot_by_balance(np.array([[[0, 3, 3, 0]]]), counts, sides).tolist() == [[[False, True, True, False]]]
    # More than MOST rows are as hot as MOST.
    many = hot_in_hindsight(np.array([[[9, 5, 9, 1]]]), sides)
    assert many.tolist() == [[[True, True, True, False]]]
