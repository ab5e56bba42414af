"""How fast the simulator itself is, on one core, with the policy objects that run live."""

import time
from collections.abc import Mapping
from statistics import median

from smoe.bench.cache.grid import DEMAND, EVICTIONS, GATES, LRU_TOUCH, ORACLES, Point
from smoe.bench.cache.points import run_points
from smoe.bench.result import Figure
from smoe.core.route_trace import RouteTrace
from smoe.sim.forwards import Mode

GOAL_PER_S = 300_000
PERCENT = 25.0
Rates = dict[str, list[float]]


def accesses_per_s(point: Point, trace: RouteTrace, repeats: int) -> list[float]:
    """Expert accesses a second of processor time, of whole replays."""
    rates = []
    for _ in range(repeats):
        began = time.process_time()
        [row] = run_points([point], {point.trace: trace})
        rates.append(row.accesses / (time.process_time() - began))
    return rates


def speed_figures(traces: Mapping[str, tuple[Mode, RouteTrace]], *, repeats: int) -> tuple[list[Figure], Rates]:
    """A figure for each trace and prefetch: the median over evictions, and the slowest. Also all samples."""
    figures, samples = [], Rates()
    for name, (mode, trace) in traces.items():
        for prefetch in (DEMAND, ORACLES[1], *(GATES[:1] if trace.lookahead_logits is not None else ())):
            rates = {
                eviction: accesses_per_s(_point(name, mode, trace, eviction, prefetch), trace, repeats)
                for eviction in EVICTIONS
            }
            samples |= {f"{name} {mode} {prefetch} {eviction}": each for eviction, each in rates.items()}
            typical = {eviction: median(each) for eviction, each in rates.items()}
            slowest = min(typical, key=typical.__getitem__)
            value = median(typical.values())
            figures.append(
                Figure(
                    figure=f"simulator, one core, {name} {mode}, prefetch {prefetch}: median over evictions",
                    value=value,
                    unit="accesses/s",
                    goal=f">= {GOAL_PER_S:,}",
                    met=value >= GOAL_PER_S,
                    bound=f"{PERCENT:g} % resident; lru {typical[LRU_TOUCH]:,.0f}, slowest {slowest} "
                    f"{typical[slowest]:,.0f}",
                )
            )
    return figures, samples


def _point(name: str, mode: Mode, trace: RouteTrace, eviction: str, prefetch: str) -> Point:
    return Point(
        trace=name,
        mode=mode,
        percent=PERCENT,
        num_slots=round(PERCENT / 100 * len(trace.layers) * trace.num_experts),
        pool="layer",
        eviction=eviction,
        prefetch=prefetch,
    )
