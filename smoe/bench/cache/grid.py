"""What is simulated: eviction x prefetch x accuracy x touch x pool x capacity, on each trace. Torch-free."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from smoe.core.route_trace import RouteTrace
from smoe.sim.forwards import Mode

RANDOM, BELADY = "random", "belady"
LRU_TOUCH, LRU_NO_TOUCH = "lru", "lru:no-touch"
LEAST_STALE = ("least-stale:fifo", "least-stale:layer", "least-stale:cyclic", "least-stale:four-tier")
CAUSAL = (RANDOM, "fifo", LRU_TOUCH, LRU_NO_TOUCH, "lfu", "lfru", "frequency", *LEAST_STALE, "utility")
"""Evictions that know the past alone."""
EVICTIONS = (*CAUSAL, BELADY)

DEMAND = "none"
ORACLES = ("oracle:accuracy=0.5", "oracle:accuracy=0.85", "oracle:accuracy=1.0")
GATES = ("gate", "gate:threshold=0.3")
"""These need a trace with look-ahead logits."""
PERCENTS = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0)
AnyPool = Literal["layer", "shared", "open"]
"""The runtime's two, slots dealt to the layers or shared above one each; and SpecMD's own rules (open_pool)."""
OPEN: AnyPool = "open"
POOLS: tuple[AnyPool, ...] = ("layer", "shared", OPEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One simulation. `num_slots` is what `percent` comes to, with one slot a layer at least but in the open pool."""

    trace: str
    mode: Mode
    percent: float
    num_slots: int
    pool: AnyPool
    eviction: str
    prefetch: str

    @property
    def policy(self) -> str:
        return f"evict={self.eviction},prefetch={self.prefetch}"

    @property
    def region(self) -> "Region":
        return Region(self.trace, self.mode, self.percent, self.pool, self.prefetch)


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """Where evictions compete."""

    trace: str
    mode: Mode
    percent: float
    pool: AnyPool
    prefetch: str


def points(
    name: str,
    trace: RouteTrace,
    mode: Mode,
    *,
    percents: Sequence[float] = PERCENTS,
    evictions: Sequence[str] = EVICTIONS,
    pools: Sequence[AnyPool] = POOLS,
    prefetches: Sequence[str] | None = None,
) -> Iterator[Point]:
    """Capacities that come to the same slots are there once. `prefetches` None are all that the trace allows."""
    if prefetches is None:
        prefetches = (DEMAND, *ORACLES, *(GATES if trace.lookahead_logits is not None else ()))
    for pool in pools:
        for percent, num_slots in capacities(trace, percents, least=1 if pool == OPEN else len(trace.layers)):
            for prefetch in prefetches:
                for eviction in evictions:
                    yield Point(
                        trace=name,
                        mode=mode,
                        percent=percent,
                        num_slots=num_slots,
                        pool=pool,
                        eviction=eviction,
                        prefetch=prefetch,
                    )


def capacities(trace: RouteTrace, percents: Sequence[float], *, least: int) -> list[tuple[float, int]]:
    """(percent, slots), never below `least`; each number of slots once, under the highest percentage that gives it."""
    total = len(trace.layers) * trace.num_experts
    found = {max(least, round(percent / 100 * total)): percent for percent in sorted(percents)}
    return [(percent, slots) for slots, percent in found.items()]
