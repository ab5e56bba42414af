"""The share of requests within an SLO over the rate at which they come, and the highest rate that still serves a given
share. Nothing of it is measured: every result says so."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from smoe.core.errors import ConfigError
from smoe.metrics.search import Search, highest_rate
from smoe.metrics.slo import Slo, summarise
from smoe.sched.scheduler import Scheduler
from smoe.sim.serving.cost import StepCost
from smoe.sim.serving.serve import Served, check, serve
from smoe.workload.arrivals import ArrivalProcess
from smoe.workload.plan import Plan, timed

DEFAULT_PERCENT = 99.0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """`plan`'s requests, at the times of `process` at whatever rate; `seed` is of both and of what drafts get right."""

    plan: Plan
    process: ArrivalProcess
    slo: Slo
    seed: int = 0


def serve_at(engine: Engine, offered: Offered, rate: float | None) -> Served:
    """Raises ConfigError."""
    plan = timed(offered.plan, offered.process, rate, offered.seed)
    return serve(plan.arrivals, engine.scheduler(), engine.make_cost(), accept=engine.accept, seed=offered.seed)


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


def curve(
    engine: Engine, offered: Offered, rates: Iterable[float | None], on_rate: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    found = []
    for rate in rates:
        found.append(figures(serve_at(engine, offered, rate), offered.slo, rate))
        on_rate()
    return found


def highest(
    engine: Engine, offered: Offered, *, percent: float = DEFAULT_PERCENT, start: float = 1.0, tolerance: float = 0.02
) -> tuple[Search, list[dict[str, Any]]]:
    """The highest rate at which `percent` of the requests meet the SLO, and the figures of every rate that was tried.

    Raises ConfigError where that depends on no rate: of requests at a trace's own times.
    """
    if not 0 < percent <= 100:
        raise ConfigError("percent", percent, "above 0 up to 100")
    check(offered.plan.arrivals, engine.scheduler())
    tried: list[dict[str, Any]] = []

    def holds(rate: float) -> bool:
        tried.append(figures(serve_at(engine, offered, rate), offered.slo, rate))
        return bool(tried[-1]["slo_attainment"] >= percent / 100)

    return highest_rate(holds, start=start, tolerance=tolerance), tried
