"""Load points: the same demand offered to a server at some rate or concurrency, several times."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from smoe.bench.slo.client import Load, Order, Target, closed_loop, open_loop
from smoe.bench.slo.clock import Clock, MonotonicClock
from smoe.bench.slo.orders import orders_of
from smoe.bench.slo.timeline import Sample, watched
from smoe.core.errors import StartupError
from smoe.metrics.slo import Slo, summarise
from smoe.workload.demand import Demand
from smoe.workload.plan import Plan, timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """Either requests a second, or how many are kept in flight; both None: at a trace's own times."""

    rate: float | None = None
    concurrency: int | None = None

    def __str__(self) -> str:
        if self.concurrency is not None:
            return f"{self.concurrency} in flight"
        return "the trace's own rate" if self.rate is None else f"{self.rate:.4g}/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run. `figures` have vLLM's names."""

    offered: Offered
    repeat: int
    figures: dict[str, Any]
    load: Load
    timeline: tuple[Sample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """`text` is what prompts are cut from. With `decode` they go out as text, else as token ids. The server's own
    figures are polled `poll_s` seconds apart."""

    target: Target
    demand: Demand
    slo: Slo
    text: Sequence[int]
    decode: Callable[[Sequence[int]], str] | None = None
    repeats: int = 1
    poll_s: float = 0.25
    clock: Clock = field(default_factory=MonotonicClock)

    def warm_up(self, requests: int) -> None:
        """Answers that are not counted. Raises StartupError when there is none."""
        plan = self.demand.requests()
        orders = self._orders(Plan(arrivals=plan.arrivals[:requests], block_tokens=plan.block_tokens), -1)
        if not orders:
            return
        load = asyncio.run(closed_loop(self.target, orders, 4, self.clock))
        if all(record.failed for record in load.records):
            raise StartupError(f"{self.target.url}: no answer to the first request: {load.records[0].error}")

    def at(self, offered: Offered) -> list[Point]:
        return [self._point(offered, repeat) for repeat in range(self.repeats)]

    def _point(self, offered: Offered, repeat: int) -> Point:
        plan = self.demand.requests(repeat)
        if offered.concurrency is None:
            plan = timed(plan, self.demand.process, offered.rate, self.demand.seed + repeat)
        load, timeline = asyncio.run(self._load(offered, self._orders(plan, repeat)))
        figures = summarise(load.records, load.duration_s, self.slo)
        return Point(offered=offered, repeat=repeat, figures=figures, load=load, timeline=timeline)

    def _orders(self, plan: Plan, repeat: int) -> list[Order]:
        seed = self.demand.seed + repeat if repeat >= 0 else self.demand.seed + 10**6
        return orders_of(plan, self.text, seed, decode=self.decode)

    async def _load(self, offered: Offered, orders: list[Order]) -> tuple[Load, tuple[Sample, ...]]:
        async with watched(self.target, self.clock, self.poll_s) as timeline:
            if offered.concurrency is None:
                load = await open_loop(self.target, orders, self.clock)
            else:
                load = await closed_loop(self.target, orders, offered.concurrency, self.clock)
        return load, tuple(timeline.samples)


def attainment(points: Iterable[Point], slo: Slo) -> float:
    """Share of all requests of these runs that met the objectives."""
    met = [slo.meets(record) for point in points for record in point.load.records]
    return sum(met) / len(met)
