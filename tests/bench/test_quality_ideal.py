"""Accounting of substitutions, by hand."""

import numpy as np
import pytest

from smoe.bench.quality.ideal import IdealCache, Tally
from smoe.bench.quality.off_policy import estimate
from smoe.core.route_trace import RouteTrace
from smoe.offload.policies.protocols import PolicySet, Routing
from tests.bench.quality_fakes import AdmitAll, lossless, lossy

LAYER = 3
# Expert 3 is not resident when the second token asks for it. A row's weights sum to a half.
ROUTES = [((0, 1), (0.375, 0.125)), ((0, 3), (0.3, 0.2)), ((3, 0), (0.4, 0.1))]


def cache_of(policies: PolicySet) -> IdealCache:
    return IdealCache(policies, (LAYER,), num_slots=3, floor=3, max_background=2)


def routing(ids: tuple[int, ...], weights: tuple[float, ...]) -> Routing:
    logits = np.linspace(0, 1, 4, dtype=np.float32)[None]
    return Routing(layer=LAYER, ids=np.array([ids], np.int32), weights=np.array([weights], np.float32), logits=logits)


def replay(cache: IdealCache, count: int) -> list[tuple[int, ...]]:
    """What is computed for each of the first `count` tokens."""
    computed = []
    for ids, weights in ROUTES[:count]:
        cache.begin_forward()
        decision = cache.route(routing(ids, weights))
        computed.append(tuple((np.array([ids]) if decision is None else decision.ids)[0].tolist()))
    return computed


def test_share_and_mass_of_two_tokens() -> None:
    cache = cache_of(lossy())
    assert replay(cache, 2) == [(0, 1), (0, 1)]
    tally = cache.tally()
    assert (tally.forwards, tally.rows, tally.choices, tally.substituted, tally.waited, tally.admitted) == (
        2,
        2,
        4,
        1,
        2,
        0,
    )
    assert tally.share == 0.25
    assert tally.mass == pytest.approx(0.2 / 0.5)
    assert tally.mean_mass == pytest.approx(0.4 / 2)
    cache.check_integrity()


def test_a_substituted_expert_that_is_admitted_is_there_at_the_next_pass() -> None:
    cache = cache_of(lossy(AdmitAll()))
    assert replay(cache, 3) == [(0, 1), (0, 1), (3, 0)]
    tally = cache.tally()
    assert (tally.substituted, tally.waited, tally.admitted) == (1, 2, 1)


def test_without_admission_it_is_fetched_when_it_is_first() -> None:
    cache = cache_of(lossy())
    assert replay(cache, 3) == [(0, 1), (0, 1), (3, 0)]
    assert cache.tally().waited == 3


def test_waiting_substitutes_nothing() -> None:
    cache = cache_of(lossless())
    assert replay(cache, 3) == [ids for ids, _ in ROUTES]
    assert cache.tally() == Tally(forwards=3, rows=3, choices=6, waited=3)


def test_tallies_add_and_subtract() -> None:
    first = Tally(rows=1, choices=2, substituted=1, waited=1, admitted=1, mass=0.5)
    both = Tally(rows=4, choices=8, substituted=2, waited=3, admitted=1, mass=0.75)
    assert first.plus(both.since(first)) == both


def test_estimate_replays_a_trace_sequence_by_sequence() -> None:
    trace = RouteTrace(
        fingerprint="f",
        num_experts=4,
        top_k=2,
        layers=(LAYER,),
        token_ids=np.array([7, 8, 9], np.int32),
        sequence_start=np.array([0, 1, 3], np.int64),
        phase=np.ones(3, np.uint8),
        expert_ids=np.array([[ids for ids, _ in ROUTES]], np.int16),
        expert_weights=np.array([[weights for _, weights in ROUTES]], np.float16),
        router_logits=np.broadcast_to(np.linspace(0, 1, 4, dtype=np.float16), (1, 3, 4)),
    )
    trace.validate()
    first, second = estimate(trace, cache_of(lossy()))
    assert (first.rows, first.substituted, first.waited) == (1, 0, 2)
    assert (second.rows, second.substituted, second.waited) == (2, 1, 1)
    assert second.mean_mass == pytest.approx(0.2, abs=1e-3)
