"""Counts and times worked out by hand, forwards by mode, refusals."""

import numpy as np
import pytest

from smoe.core.errors import ConfigError
from smoe.core.link_model import LinkModel
from smoe.core.route_trace import RouteTrace
from smoe.sim.compute import ComputeModel
from smoe.sim.forwards import forwards
from smoe.sim.simulate import simulate
from smoe.workload.routes import synthetic_routes


def one_layer(*tokens: tuple[int, ...], experts: int = 8, phase: tuple[int, ...] | None = None) -> RouteTrace:
    count = len(tokens)
    return RouteTrace(
        fingerprint="test",
        num_experts=experts,
        top_k=len(tokens[0]),
        layers=(3,),
        token_ids=np.zeros(count, dtype=np.int32),
        sequence_start=np.array([0, count], dtype=np.int64),
        phase=np.array(phase or (1,) * count, dtype=np.uint8),
        expert_ids=np.array([tokens], dtype=np.int16),
    )


def test_hits_misses_and_evictions_of_an_lru() -> None:
    result = simulate(one_layer((0, 1), (1, 2), (0, 3), (3, 0)), "evict=lru", "3")
    stats = result.experts
    # 0 1 miss; 1 hits, 2 misses; 0 hits, 3 evicts 1 (older than 2? no: 1 was used with 2, before it); 3 0 hit
    assert (stats.hits, stats.cold_misses, stats.collision_misses, stats.evictions) == (4, 4, 0, 1)
    assert stats.compulsory_misses == 4
    assert (result.accesses, result.forwards, result.seconds) == (8, 4, None)


def test_time_on_a_link() -> None:
    """1 s an expert, 0.5 s a layer, 0.25 s a row: misses wait one after another, hits compute beside the first."""
    link, compute = LinkModel(100.0), ComputeModel(0.5, 0.25)
    result = simulate(one_layer((0, 1), (1, 2)), "evict=lru", "3", link=link, compute=compute, expert_bytes=100)
    # Token 1: 0.5; 0 comes at 1.5, computed by 1.75; 1 comes at 2.5, computed by 2.75.
    # Token 2: 3.25; 1 is computed by 3.5; 2 comes at 4.25, computed by 4.5.
    assert result.seconds == pytest.approx(4.5)
    assert result.experts.wait_s == pytest.approx(1.0 + 0.75 + 0.75)
    assert result.experts.bytes_moved == 300
    assert result.link_busy_share == pytest.approx(3 / 4.5)
    assert result.ms_per_token == pytest.approx(2250)


def test_time_in_place() -> None:
    """1 s an expert, 0.5 s a layer, 0.25 s a row from a slot; a row in place takes 2 s, then 0.75 s."""
    trace, link = one_layer((0, 1), (1, 2)), LinkModel(100.0)
    compute = ComputeModel.parse("0.5s+0.25s+2s")
    policy = "miss=cpu,admit=background:beta=0.4"
    result = simulate(trace, policy, "3", link=link, compute=compute, expert_bytes=100)
    # Token 1: 0.5; 0 and 1 are on their way, as 2 will be, and are computed in place by 4.5.
    # Token 2: 5.0; 1 is there, computed by 5.25; 2 is computed in place by 7.25.
    stats = result.experts
    assert result.seconds == pytest.approx(7.25)
    assert (stats.hits, stats.misses, stats.computed_in_place, stats.admitted) == (1, 3, 3, 3)
    assert (stats.wait_s, result.transfers) == (0.0, 3)
    compute = ComputeModel.parse("0.5s+0.25s+0.75s")
    result = simulate(trace, "miss=auto,admit=always", "3", link=link, compute=compute, expert_bytes=100)
    # Token 1: 0.5; 1 is computed in place by 1.25; 0 comes at 1.5, computed by 1.75.
    # Token 2: 2.25; 2 is computed in place by 3.0; 1 comes at 3.25, computed by 3.5.
    assert result.seconds == pytest.approx(3.5)
    assert result.experts.wait_s == pytest.approx(0.5)
    assert (result.experts.computed_in_place, result.transfers) == (2, 2)
    assert ComputeModel.parse("1ms+2us").in_place_row_s == ComputeModel.parse("1ms+2us").row_s


def test_a_right_prefetch_is_late_or_in_time_as_the_link_allows() -> None:
    trace = synthetic_routes(num_layers=4, num_experts=16, top_k=2, tokens=50, locality=0.0)
    policy = "evict=lru,prefetch=oracle:accuracy=1.0"
    slow, fast = (
        simulate(trace, policy, "4", link=LinkModel(rate), compute=ComputeModel(0.1, 0.01), expert_bytes=100)
        for rate in (200.0, 1e6)
    )
    assert slow.experts.late > 100
    assert fast.experts.late == 0
    assert fast.experts.misses <= trace.top_k  # nothing was known before the first pass
    assert fast.experts.prefetch_used > 100
    assert slow.ms_per_token is not None
    assert fast.ms_per_token is not None
    assert fast.ms_per_token < slow.ms_per_token


def test_a_bound_that_refuses_slots_is_no_worse() -> None:
    trace = synthetic_routes(num_layers=3, num_experts=16, top_k=4, tokens=200)
    link = {"link": LinkModel(1e6), "expert_bytes": 100}
    forced, free = (simulate(trace, f"evict=belady:{word}", "6") for word in ("forced", "free"))
    lru = simulate(trace, "evict=lru", "6")
    assert free.experts.misses <= forced.experts.misses < lru.experts.misses
    timed = simulate(trace, "evict=belady:free", "6", **link)  # type: ignore[arg-type]
    assert timed.experts.misses == free.experts.misses
    assert timed.transfers == free.transfers == free.experts.misses


@pytest.mark.parametrize("evict", ["lru", "fifo", "random", "lfru", "frequency", "least-stale", "utility"])
@pytest.mark.parametrize("slots", ["1", "3", "6"])
def test_nobody_beats_belady(evict: str, slots: str) -> None:
    trace = synthetic_routes(num_layers=3, num_experts=12, top_k=3, tokens=150, seed=2)
    bound = simulate(trace, "evict=belady", slots).experts.misses
    assert bound <= simulate(trace, f"evict={evict}", slots).experts.misses


def test_forwards_of_each_mode() -> None:
    trace = synthetic_routes(num_layers=1, num_experts=4, top_k=1, tokens=11, sequences=3, prompt=2)
    assert trace.sequence_start.tolist() == [0, 3, 7, 11]
    assert list(forwards(trace, "prefill", 2)) == [((0, 3), (3, 7)), ((7, 11),)]
    decode = list(forwards(trace, "decode", 2))
    assert decode[:4] == [((0, 1), (3, 4)), ((1, 2), (4, 5)), ((2, 3), (5, 6)), ((6, 7), (7, 8))]
    recorded = list(forwards(trace, "recorded", 1))
    assert recorded == [((0, 2),), ((2, 3),), ((3, 5),), ((5, 6),), ((6, 7),), ((7, 9),), ((9, 10),), ((10, 11),)]
    for mode in ("prefill", "decode", "recorded"):
        for batch in (1, 2, 5):
            rows = [row for spans in forwards(trace, mode, batch) for span in spans for row in range(*span)]
            assert sorted(rows) == list(range(11))


def test_capacities_at_the_edges() -> None:
    trace = synthetic_routes(num_layers=3, num_experts=12, top_k=4, tokens=80)
    for text, slots in (("1", 3), ("3", 9), ("12", 36), ("500", 36), ("100%", 36), ("all", 36)):
        assert simulate(trace, "evict=lru", text).num_slots == slots
    assert simulate(trace, "evict=lru", "1050B", expert_bytes=100).num_slots == 10
    assert simulate(trace, "evict=lru", "12").experts.evictions == 0
    for text, message in (("0", "above zero"), ("5%", "at least one expert a layer"), ("auto", "slots a layer")):
        with pytest.raises(ConfigError, match=message):
            simulate(trace, "evict=lru", text)
    with pytest.raises(ConfigError, match="expert_bytes: None"):
        simulate(trace, "evict=lru", "2kB")


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("prefetch=gate", "no lookahead_logits"),
        ("miss=substitute", "no router_logits"),
        ("evict=best", "policies.evict: 'best'"),
        ("prefetch=gate:threshold=nan", "policies.prefetch.gate.threshold: 'nan'"),
    ],
)
def test_policies_that_the_trace_cannot_feed_are_refused(policy: str, message: str) -> None:
    trace = synthetic_routes(num_layers=2, num_experts=8, top_k=2, tokens=10)
    with pytest.raises(ConfigError, match=message):
        simulate(trace, policy, "2")
