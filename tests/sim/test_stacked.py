"""A link from a host memory that keeps a part: what it lacks takes the longer way once."""

import pytest

from smoe.core.errors import ConfigError
from smoe.core.link_model import LinkModel
from smoe.core.packaged_traces import open_trace
from smoe.offload.policies.catalog import Geometry
from smoe.offload.slots import View
from smoe.sim.predict import head
from smoe.sim.result import SimResult
from smoe.sim.simulate import simulate
from smoe.sim.stacked import HostPart, StackedLink

FAST, SLOW = LinkModel(1e9), LinkModel(1e7)
SIZE = 10**5


def link(fraction: float = 0.5) -> StackedLink:
    geometry = Geometry(layers=(0, 1), num_experts=4, top_k=1)
    return StackedLink(geometry, fraction, hit_s=1.0, miss_s=10.0)


def carried(stacked: StackedLink, *experts: int, layer: int = 0) -> list[float]:
    """When each arrives, begun together."""
    for expert in experts:
        stacked.begin(View(layer, expert, expert, 1), 0.0)
    times = []
    while stacked.busy:
        times.append(stacked.next_arrival_s())
        stacked.arrivals(times[-1])
    return times


def test_the_first_time_from_the_disk_then_from_host_memory() -> None:
    stacked = link()
    assert carried(stacked, 0, 0, 1, 0) == [10.0, 11.0, 21.0, 22.0]
    assert stacked.from_disk == 2
    assert stacked.fetch_s == pytest.approx(22.0 / 4)


def test_what_was_used_longest_ago_leaves_host_memory() -> None:
    stacked = link()  # two slots a layer
    carried(stacked, 0, 1)
    assert stacked.hold(0, [0, 1, 2]) == {0, 1}
    stacked.hold(0, [0])
    carried(stacked, 2)
    assert stacked.hold(0, [0, 1, 2]) == {0, 2}
    assert stacked.hold(1, [0, 1]) == set()


def run(policy: str, host: HostPart | None, last: LinkModel = FAST) -> SimResult:
    trace = head(open_trace("builtin"), 200)
    return simulate(trace, policy, "10%", link=last, expert_bytes=SIZE, mode="decode", host=host)


def test_all_in_host_memory_is_the_last_link_but_for_first_times_and_nothing_there_is_the_long_way() -> None:
    whole, none = run("evict=lru", HostPart(1.0, SLOW)), run("evict=lru", HostPart(1e-9, SLOW))
    alone, long = run("evict=lru", None), run("evict=lru", None, SLOW)
    for each in (whole, none):
        assert each.transfers == alone.transfers
        assert each.experts.host_bytes == SIZE * alone.transfers
        assert each.experts.hits == alone.experts.hits
    assert whole.experts.disk_transfers == alone.experts.compulsory_misses
    assert whole.seconds is not None
    assert none.seconds is not None
    assert alone.seconds is not None
    assert long.seconds is not None
    first = whole.experts.disk_transfers * (SLOW.transfer_s(SIZE) - FAST.transfer_s(SIZE))
    assert whole.seconds == pytest.approx(alone.seconds + first)
    # One slot a layer: nearly every transfer takes the long way.
    assert 0.9 * long.seconds < none.seconds <= long.seconds


def test_only_what_host_memory_has_is_computed_in_place() -> None:
    everywhere, part = run("evict=lru,miss=compute", None), run("evict=lru,miss=compute", HostPart(0.2, SLOW))
    assert 0 < part.experts.computed_in_place < everywhere.experts.computed_in_place


def test_a_part_without_a_link_is_refused() -> None:
    with pytest.raises(ConfigError, match="host"):
        simulate(head(open_trace("builtin"), 8), "evict=lru", "10%", host=HostPart(0.5, SLOW))
