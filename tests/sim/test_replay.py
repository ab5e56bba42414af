"""Whole passes at once decide as their single steps do."""

from dataclasses import asdict

import pytest

from smoe.core.route_trace import RouteTrace
from smoe.sim import simulate as simulate_module
from smoe.sim.simulate import POOLS, Pool, simulate
from smoe.workload.routes import synthetic_routes

PREFETCHES = ("none", "follow:threshold=0.2", "token", "oracle:accuracy=0.7")
EVICTIONS = ("lru", "lru:no-touch", "random", "lfru", "utility:mass", "least-stale", "least-stale:four-tier", "belady")


@pytest.fixture(scope="module")
def trace() -> RouteTrace:
    return synthetic_routes(num_layers=3, num_experts=13, top_k=4, tokens=60, seed=5, prompt=9)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("slots", ["1", "2.5", "3", "4", "7.4", "13"])
@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize(
    ("batch", "prefetch"), [(1, prefetch) for prefetch in PREFETCHES] + [(3, "none"), (3, "follow")]
)
def test_at_once_and_step_by_step(
    trace: RouteTrace, eviction: str, slots: str, pool: Pool, batch: int, prefetch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from smoe.core.expert_memory import ExpertMemory

    memory = ExpertMemory("slots", float(slots))
    fast = simulate(trace, f"evict={eviction},prefetch={prefetch}", memory, pool=pool, batch=batch)
    monkeypatch.setattr(simulate_module, "works_for", lambda policies: False)
    slow = simulate(trace, f"evict={eviction},prefetch={prefetch}", memory, pool=pool, batch=batch)
    assert asdict(fast) == asdict(slow)
    assert fast.transfers == fast.experts.misses + fast.experts.prefetched
