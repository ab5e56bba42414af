"""Two processors at once: counts as the usual simulation where time is of no consequence, times by hand where it is."""

import numpy as np
import pytest

from smoe.core.packaged_traces import open_trace
from smoe.core.route_edit import select_sequences
from smoe.offload.policies.balance import LinearSides
from smoe.sim.simulate import simulate
from smoe.sim.two_sides import SideCosts, TwoSides
from smoe.sim.windowed import windowed
from tests.sim.test_sensors import trace

FREE = LinearSides(g0=0.0, g1=0.0, tile=1, m0=0.0, m1=0.0)
SIDES = LinearSides(g0=1.0, g1=2.0, tile=2, m0=3.0, m1=0.5)


@pytest.fixture(scope="module")
def windows():
    return select_sequences(windowed(open_trace("builtin"), 9), range(12))


@pytest.mark.parametrize(
    "policy",
    [
        "evict=lru",
        "evict=lfu,miss=cpu",
        "evict=utility:mass,miss=auto",
        "evict=utility:adaptive,prefetch=utility,miss=cpu",
        "evict=utility:inertial:tau=2,prefetch=utility",
        "evict=utility:adaptive:difference,prefetch=utility,miss=cpu",
        "evict=utility:adaptive:reachable,prefetch=utility,miss=auto",
    ],
)
@pytest.mark.parametrize("shared", [True, False])
def test_it_counts_as_the_usual_simulation(windows, policy, shared):
    replay = TwoSides(windows, policy, 6 * 20, FREE, fetch_s=0.0, shared=shared)
    found = replay.run()
    usual = simulate(
        windows, policy, "20", mode="prefill", pool="shared" if shared else "layer", costs=SideCosts(FREE, 0.0)
    )
    stats = replay.planner.stats()
    for name in ("hits", "cold_misses", "collision_misses", "computed_in_place_rows", "prefetched", "evictions"):
        assert getattr(stats, name) == getattr(usual.experts, name), name
    assert sum(window.copies for window in found) == usual.transfers
    assert sum(window.fast_rows + window.slow_rows for window in found) == windows.expert_ids.size
    assert sum(window.slow_rows for window in found) == stats.computed_in_place_rows


def test_all_resident_takes_the_fast_side_alone():
    cut = windowed(trace(lengths=(4, 4)), 2)
    cut.expert_ids[:, 2:] = np.tile(cut.expert_ids[:, :2], (1, 3, 1))
    replay = TwoSides(cut, "evict=lru,miss=cpu,admit=background:beta=0.01", 10, SIDES, fetch_s=0.0, draft_s=100.0)
    *_, last = replay.run()
    used = [len(np.unique(ids[:2])) for ids in cut.expert_ids]
    assert (last.slow_rows, last.copies) == (0, 0)
    assert [split.fast_s for split in last.splits] == [1.0 + 2.0 * number for number in used]
    assert last.difference_s == last.makespan_s
    assert last.wait_s == pytest.approx(0.0)


def test_sides_run_at_once_and_what_is_waited_for_comes_after():
    cut = windowed(trace(lengths=(2,), layers=(0,)), 2)
    used = len(np.unique(cut.expert_ids))
    rows = cut.expert_ids.size
    # Nothing in slots: all in place, one after the other.
    replay = TwoSides(cut, "evict=lru,miss=cpu,admit=always", 5, SIDES, fetch_s=10.0, draft_s=7.0)
    (window,) = replay.run()
    assert (window.splits[0].fast_s, window.splits[0].slow_s) == (1.0, 3.0 * used + 0.5 * rows)
    assert (window.makespan_s, window.copies, window.wait_s) == (window.splits[0].slow_s, 0, pytest.approx(0.0))
    assert replay.now == pytest.approx(7.0 + window.makespan_s)
    # All fetched, each 10 s after the one before, computed in 2 s while the next one is on its way.
    replay = TwoSides(cut, "evict=lru", 5, SIDES, fetch_s=10.0)
    (window,) = replay.run()
    assert (window.copies, window.slow_rows) == (used, 0)
    assert window.splits[0].fast_s == 1.0 + 2.0 * used
    assert replay.now == pytest.approx(10.0 * used + 2.0)
    assert window.wait_s == pytest.approx(replay.now - window.makespan_s)
