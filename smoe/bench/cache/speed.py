"""How fast the simulator itself is, on one core, with the policy objects that run live."""

import time
from statistics import median

from smoe.bench.result import Figure
from smoe.core.route_trace import RouteTrace
from smoe.sim.simulate import simulate

GOAL_PER_S = 300_000
POLICIES = (
    "evict=lru",
    "evict=lfru",
    "evict=least-stale:cyclic",
    "evict=least-stale:cyclic,prefetch=oracle:accuracy=0.85",
    "evict=belady",
)
CAPACITY = "25%"


def accesses_per_s(trace: RouteTrace, policy: str, repeats: int) -> list[float]:
    """Expert accesses a second of whole replays, one token a forward."""
    rates = []
    for _ in range(repeats):
        began = time.perf_counter()
        result = simulate(trace, policy, CAPACITY, mode="decode")
        rates.append(result.accesses / (time.perf_counter() - began))
    return rates


def speed_figures(trace: RouteTrace, *, repeats: int) -> tuple[list[Figure], dict[str, list[float]]]:
    """The goal is for demand LRU; the others show what a policy costs. Also all samples."""
    samples = {policy: accesses_per_s(trace, policy, repeats) for policy in POLICIES}
    figures = [
        Figure(
            figure=f"simulator, one core, {policy}",
            value=median(rates),
            unit="accesses/s",
            goal=f">= {GOAL_PER_S:,}" if policy == POLICIES[0] else None,
            met=median(rates) >= GOAL_PER_S if policy == POLICIES[0] else None,
            bound=f"spread {min(rates):,.0f}..{max(rates):,.0f}, {CAPACITY} resident",
        )
        for policy, rates in samples.items()
    ]
    return figures, samples
