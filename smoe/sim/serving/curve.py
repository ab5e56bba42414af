"""The share of requests within an SLO over the rate at which they come, and the highest rate that still serves a given
share. Nothing of it is measured: every result says so."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from smoe.core.errors import ConfigError
from smoe.metrics.search import Search, highest_rate
from smoe.metrics.slo import Slo, summarise
from smoe.sched.scheduler import Scheduler
from smoe.sim.serving.cost import StepCost
from smoe.sim.serving.serve import Served, serve
from smoe.workload.demand import Demand


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What serves: limits as the engine's Scheduler has them, and how to make a cost that has served nothing yet."""

    make_cost: Callable[[], StepCost]
    kv_rows: int
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 2048
    draft_tokens: int = 0
    accept: float = 1.0

    def __post_init__(self) -> None:
        for name, low in (("kv_rows", 1), ("max_num_seqs", 1), ("max_num_batched_tokens", 1), ("draft_tokens", 0)):
            if getattr(self, name) < low:
                raise ConfigError(name, getattr(self, name), f"integer >= {low}")
        if not 0 <= self.accept <= 1:
            raise ConfigError("draft_acceptance", self.accept, "a share from 0 to 1")

    def scheduler(self) -> Scheduler:
        return Scheduler(
            kv_rows=self.kv_rows,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            draft_tokens=self.draft_tokens,
        )


@dataclass(frozen=True, slots=True)
class Load:
    """At each rate as many requests of `demand` as it says, or as come in `min_s`, as far as its trace goes: a queue
    that grows is not seen in a moment."""

    demand: Demand
    min_s: float = 0.0

    def at(self, rate: float | None) -> Demand:
        wanted = self.demand.num_requests if rate is None else math.ceil(rate * self.min_s)
        if wanted <= self.demand.num_requests:
            return self.demand
        trace = self.demand.open()
        most = wanted if trace is None else len(trace.rows)
        return replace(self.demand, num_requests=max(self.demand.num_requests, min(wanted, most)))


def serve_at(engine: Engine, load: Load, rate: float | None) -> Served:
    """At `rate` requests a second; None is a trace's own. Raises ConfigError."""
    demand = load.at(rate)
    arrivals = demand.plan(rate).arrivals
    return serve(arrivals, engine.scheduler(), engine.make_cost(), accept=engine.accept, seed=demand.seed)


def figures(served: Served, slo: Slo, rate: float | None) -> dict[str, Any]:
    """As of a measured run, and that it is none."""
    return {
        "simulated": True,
        "request_rate": rate,
        **summarise(served.records, served.duration_s, slo),
        "steps": served.steps,
        "busy_share": served.busy_s / served.duration_s,
        "most_waiting": served.most_waiting,
    }


def highest(
    engine: Engine,
    load: Load,
    slo: Slo,
    *,
    share: float,
    start: float = 1.0,
    tolerance: float = 0.05,
    factor: float = 2.0,
) -> tuple[Search, list[dict[str, Any]]]:
    """The highest rate at which `share` of the requests meet the SLO, and the figures of every rate that was tried, in
    ascending order. `factor` as highest_rate has it."""
    tried: list[dict[str, Any]] = []

    def holds(rate: float) -> bool:
        tried.append(figures(serve_at(engine, load, rate), slo, rate))
        return bool(tried[-1]["slo_attainment"] >= share)

    search = highest_rate(holds, start=start, tolerance=tolerance, factor=factor)
    return search, sorted(tried, key=lambda one: float(one["request_rate"]))
