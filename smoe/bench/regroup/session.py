"""What every part of the regroup benchmark shares."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smoe.bench.result import Figure, Result
from smoe.clustering.catalog import make_solver
from smoe.clustering.compare import Compared, Contest, FanOut, compare
from smoe.clustering.cross_entropy import CrossEntropy, CrossEntropyConfig
from smoe.clustering.local import held_by
from smoe.clustering.problem import Balance, Solver
from smoe.core.route_trace import Array, RouteTrace

OURS, ALONE = "cross-entropy", "cross-entropy without swaps"
THETA = 0.001
"""Locality alone: expert load is bounded by max_load, tokens by alignment."""
FREE, HELD = Balance(theta=THETA), Balance(theta=THETA, max_load=1.35)
BASELINES = ("contiguous", "random", "eplb", "inter-layer", "metis", "kmeans", "alternating")
_NOTE_S = 10.0


@dataclass(slots=True, kw_only=True)
class Session:
    """Collects figures; says on stderr what runs, and how far it is, every ten seconds."""

    result: Result
    fan_out: FanOut
    out: Path
    quick: bool
    seed: int = 0
    _began: float = field(default_factory=time.perf_counter)
    _noted: float = 0.0

    def note(self, text: str) -> None:
        self._noted = time.perf_counter()
        print(f"regroup {self._noted - self._began:5.0f} s  {text}", file=sys.stderr, flush=True)

    def figure(
        self,
        figure: str,
        value: float | None,
        unit: str = "share",
        *,
        goal: str | None = None,
        met: bool | None = None,
        bound: str | None = None,
    ) -> None:
        self.result.add(Figure(figure=figure, value=value, unit=unit, goal=goal, met=met, bound=bound))

    def contest(
        self, name: str, fit: RouteTrace, heldout: RouteTrace, devices: int, entries: Sequence[tuple[str, Balance]]
    ) -> list[Compared]:
        """Rows of `entries`, which also go into the samples as `name`."""
        contest = contest_of(fit, heldout, devices, entries, self.seed)
        self.note(f"{name}: {len(entries)} entries on {len(fit.layers)} layers, {fit.num_tokens:,} tokens")

        def progress(what: str, done: int, total: int) -> None:
            if done == total or time.perf_counter() - self._noted > _NOTE_S:
                self.note(f"{name}: {what} {done}/{total}")

        rows = compare(contest, entries, fan_out=self.fan_out, progress=progress)
        self.result.samples[name] = [row.as_json() for row in rows]
        return rows

    def placed(self, name: str, fit: RouteTrace, devices: int, balance: Balance = FREE) -> Array:
        """[L, E, G] bool by our solver, without judging it."""
        entries = [(OURS, balance)]
        contest = contest_of(fit, fit, devices, entries, self.seed)
        self.note(name)
        return held_by(compare(contest, entries, fan_out=self.fan_out, judging=False)[0].expert_device, devices)


def contest_of(
    fit: RouteTrace, heldout: RouteTrace, devices: int, entries: Sequence[tuple[str, Balance]], seed: int
) -> Contest:
    names = dict.fromkeys(name for name, _ in entries)
    return Contest(
        fit=fit,
        heldout=heldout,
        solvers=tuple(_solver(name) for name in names),
        slots_of_device=(fit.num_experts // devices,) * devices,
        seed=seed,
    )


def _solver(name: str) -> Solver:
    return CrossEntropy(CrossEntropyConfig(refine=False), name=ALONE) if name == ALONE else make_solver(name)


def entry(rows: Sequence[Compared], solver: str, balance: Balance) -> Compared:
    return next(row for row in rows if row.solver == solver and row.balance == balance)


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def points(rows: Sequence[Compared], solver: str, measure: str = "lar_token") -> list[tuple[float, float]]:
    """(held-out load imbalance, local share) of a solver's rows."""
    return [(mean(row.load_imbalance), mean(getattr(row, measure))) for row in rows if row.solver == solver]


def describe(trace: RouteTrace) -> dict[str, Any]:
    return {"tokens": trace.num_tokens, "sequences": trace.num_sequences, "layers": len(trace.layers)}
