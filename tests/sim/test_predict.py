"""Predicted decode speed: bounds, warm counts, traces of another geometry, policies that a trace cannot serve."""

import numpy as np
import pytest

from smoe.core.errors import ConfigError
from smoe.core.link_model import LinkModel
from smoe.core.packaged_traces import open_trace
from smoe.core.route_trace import DECODE, RouteTrace
from smoe.sim.predict import STAND_IN, Prediction, choose_trace, head, predict, usable

FAST, SLOW = LinkModel(1e15), LinkModel(1e9)


def made(sequences: int = 4, length: int = 10, layers: int = 2, experts: int = 8, top_k: int = 2) -> RouteTrace:
    chance, tokens = np.random.default_rng(0), sequences * length
    ids = np.stack([[chance.choice(experts, top_k, replace=False) for _ in range(tokens)] for _ in range(layers)])
    return RouteTrace(
        fingerprint="f",
        num_experts=experts,
        top_k=top_k,
        layers=tuple(range(layers)),
        token_ids=np.zeros(tokens, dtype=np.int32),
        sequence_start=np.arange(0, tokens + 1, length, dtype=np.int64),
        phase=np.full(tokens, DECODE, dtype=np.uint8),
        expert_ids=ids.astype(np.int16),
    )


def guess(
    trace: RouteTrace, fraction: float, link: LinkModel, *, accesses: int = 4, policy: str = "evict=lru"
) -> Prediction:
    return predict(
        trace, policy, fraction, accesses=accesses, expert_bytes=10**6, link=link, dense_s=0.002, row_s=0.001
    )


def test_with_all_experts_resident_only_arithmetic_is_left() -> None:
    found = guess(made(), 1.0, SLOW)
    assert found.hit_rate == 1.0
    assert found.moved_bytes == 0
    assert found.tokens_per_s == pytest.approx(1 / 0.006)
    assert found.compute_s == found.bound_s == pytest.approx(0.006)


def test_a_link_without_time_leaves_the_arithmetic() -> None:
    assert guess(made(), 0.25, FAST).tokens_per_s == pytest.approx(1 / 0.006, rel=1e-6)


def test_a_slow_link_bounds_the_step_by_its_bytes() -> None:
    found = guess(made(), 0.25, LinkModel(1e6))
    assert found.bound_s == pytest.approx(found.moved_bytes / 1e6)
    assert found.tokens_per_s <= 1 / found.bound_s
    assert found.tokens_per_s == pytest.approx(1 / found.bound_s, rel=0.01)


def test_counts_are_those_after_the_first_half() -> None:
    # Every expert is met in the first half, so the second one misses nothing more.
    assert guess(made(sequences=8, length=40), 1.0, SLOW).moved_bytes == 0


def test_more_capacity_is_never_slower_here() -> None:
    rates = [guess(made(), fraction, SLOW).tokens_per_s for fraction in (0.25, 0.5, 0.75, 1.0)]
    assert rates == sorted(rates)


def test_a_trace_of_other_size_is_stretched_to_the_models_accesses() -> None:
    own, double = guess(made(), 1.0, SLOW), guess(made(), 1.0, SLOW, accesses=8)
    assert double.tokens_per_s == pytest.approx(1 / (0.002 + 8 * 0.001))
    assert guess(made(), 0.25, SLOW, accesses=8).moved_bytes == pytest.approx(2 * guess(made(), 0.25, SLOW).moved_bytes)
    assert own.compute_s == pytest.approx(0.006)


def test_prefetch_is_left_out_where_the_trace_cannot_look_ahead() -> None:
    assert usable("evict=lru,prefetch=gate", made()).prefetch.name == "none"
    assert usable("evict=lru,prefetch=gate", open_trace("builtin")).prefetch.name == "gate"


def test_policies_that_need_the_future_are_refused() -> None:
    with pytest.raises(ConfigError, match="only a simulation knows the future"):
        guess(made(), 0.5, SLOW, policy="evict=belady")


def test_trace_of_the_geometry_or_the_stand_in() -> None:
    assert choose_trace(6, 64, 8) == ("builtin", True)
    assert choose_trace(61, 256, 8) == (STAND_IN, False)


def test_head_is_whole_sequences() -> None:
    assert head(made(), 25).sequence_start.tolist() == [0, 10, 20]
    assert head(made(), 4).sequence_start.tolist() == [0, 4]
