"""Every solver on every layer, judged side by side on sequences that none of them saw.

Axes: L layers, E experts.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smoe.clustering.evaluate import best_local, destinations, lar_of, load_imbalance
from smoe.clustering.journey import follow
from smoe.clustering.local import held_by, imbalance
from smoe.clustering.problem import Balance, Solver
from smoe.clustering.problems import layer_problem
from smoe.clustering.tables import build_tables, vocab_of
from smoe.core.route_trace import RouteTrace

Array = npt.NDArray[Any]
History = tuple[tuple[float, float, float], ...]

FanOut = Callable[[Callable[[Any, Any], Any], Sequence[Any], Any], Iterable[tuple[int, Any]]]
"""(index, function(items[index], common)) for every item, in any order, perhaps from other processes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contest:
    """What is solved and how it is judged. `expert_group` [E] as a LayerProblem's."""

    fit: RouteTrace
    heldout: RouteTrace
    solvers: tuple[Solver, ...]
    slots_of_device: tuple[int, ...]
    seed: int = 0
    expert_group: Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compared:
    """One solver under one balance. Tuples have a value a layer, of held-out sequences but for `fit_imbalance` and
    `seconds`; `lar_token` by T, `lar_chain` by T and A, `lar_best` with every token on its best device (which a trace
    without token ids has too). `history` is a solver's own, by layer."""

    solver: str
    balance: Balance
    expert_device: Array
    lar_token: tuple[float, ...]
    lar_chain: tuple[float, ...]
    lar_best: tuple[float, ...]
    needed_devices: tuple[float, ...]
    load_imbalance: tuple[float, ...]
    fit_imbalance: tuple[float, ...]
    token_imbalance: tuple[float, ...]
    seconds: tuple[float, ...]
    history: tuple[History, ...]

    def as_json(self) -> dict[str, Any]:
        means = {name: float(np.mean(getattr(self, name))) for name in MEANS}
        return {
            "solver": self.solver,
            "theta": self.balance.theta,
            "max_load": self.balance.max_load,
            **means,
            "seconds": float(np.sum(self.seconds)),
            "by_layer": {name: [round(value, 6) for value in getattr(self, name)] for name in MEANS},
        }


MEANS = (
    "lar_token",
    "lar_chain",
    "lar_best",
    "needed_devices",
    "load_imbalance",
    "fit_imbalance",
    "token_imbalance",
)


_UNJUDGED: dict[str, tuple[float, ...]] = {name: () for name in MEANS if name != "fit_imbalance"}


@dataclass(frozen=True, slots=True)
class _Solve:
    solver: int
    balance: Balance
    layer: int


@dataclass(frozen=True, slots=True, eq=False)
class _Solved:
    expert_device: Array
    history: History
    fit_imbalance: float
    seconds: float


def compare(
    contest: Contest,
    entries: Sequence[tuple[str, Balance]],
    *,
    fan_out: FanOut | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    judging: bool = True,
) -> list[Compared]:
    """An answer for each (solver name, balance), in that order. `progress(what, done, all)` as work ends. Without
    `judging`, what is measured on held-out sequences is empty."""
    fan_out, progress = fan_out or in_process, progress or (lambda what, done, total: None)
    names = [solver.name for solver in contest.solvers]
    layers = range(len(contest.fit.layers))
    items = [_Solve(names.index(name), balance, layer) for layer in layers for name, balance in entries]
    solved: dict[int, _Solved] = {}
    for index, answer in fan_out(solve_layer, items, contest):
        solved[index] = answer
        progress("layers", len(solved), len(items))
    of_entry = [[solved[layer * len(entries) + i] for layer in layers] for i in range(len(entries))]
    placements = [np.stack([each.expert_device for each in row]) for row in of_entry]
    judged: dict[int, dict[str, tuple[float, ...]]] = {}
    for index, measures in fan_out(judge, placements, contest) if judging else ():
        judged[index] = measures
        progress("placements", len(judged), len(placements))
    return [
        Compared(
            solver=name,
            balance=balance,
            expert_device=placements[i],
            fit_imbalance=tuple(each.fit_imbalance for each in of_entry[i]),
            seconds=tuple(each.seconds for each in of_entry[i]),
            history=tuple(each.history for each in of_entry[i]),
            **judged.get(i, _UNJUDGED),
        )
        for i, (name, balance) in enumerate(entries)
    ]


def solve_layer(item: _Solve, contest: Contest) -> _Solved:
    problem = layer_problem(contest.fit, item.layer, contest.slots_of_device, contest.expert_group)
    began = time.perf_counter()
    solution = contest.solvers[item.solver].solve(problem, item.balance, contest.seed)
    seconds = time.perf_counter() - began
    device = solution.expert_device
    load = np.bincount(device, weights=problem.expert_load, minlength=problem.num_devices)
    return _Solved(device, solution.history, imbalance(load), seconds)


def judge(expert_device: Array, contest: Contest) -> dict[str, tuple[float, ...]]:
    """What Compared holds of a placement [L, E] on the held-out sequences."""
    fit, heldout = contest.fit, contest.heldout
    num_devices = len(contest.slots_of_device)
    on_device = held_by(expert_device, num_devices)
    tables = build_tables(fit, on_device, vocab_size=vocab_of(fit, heldout))
    journey = follow(heldout, on_device)
    token, chain = ([w.device for w in destinations(tables, heldout, journey, chain=c)] for c in (False, True))
    return {
        "lar_token": lar_of(journey, token, heldout.top_k),
        "lar_chain": lar_of(journey, chain, heldout.top_k),
        "lar_best": best_local(journey, heldout.top_k),
        "needed_devices": tuple((journey.local > 0).sum(axis=2).mean(axis=1).tolist()),
        "load_imbalance": load_imbalance(heldout, on_device),
        "token_imbalance": tuple(imbalance(np.bincount(at, minlength=num_devices)) for at in chain),
    }


def in_process(function: Callable[[Any, Any], Any], items: Sequence[Any], common: Any) -> Iterable[tuple[int, Any]]:
    return ((index, function(item, common)) for index, item in enumerate(items))
