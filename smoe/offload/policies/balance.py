"""Which experts of a layer run from slots and which where they are, so that both sides end together (spec P3.1 b).

The fast side computes hot experts from slots, the slow side cold ones in place, at the same time. A threshold tau of
utility divides them; it can only be one of few integers, so all are tried.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np

from smoe.offload.policies.protocols import Array
from smoe.offload.policies.utility_states import MOST

Objective = Literal["difference", "makespan", "reachable"]
"""What the threshold makes least: |T_fast - T_slow|, as published; the later of the two ends; or that end with what can
come in by then on the fast side, where the others refuse a threshold as soon as one hot expert cannot."""
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
MOST_SUBSETS = 200_000


class Sides(Protocol):
    """Seconds of a layer's experts, given their row counts (all above 0)."""

    def fast_s(self, counts: Iterable[int]) -> float: ...

    def slow_s(self, counts: Iterable[int]) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSides:
    """Fast: g0 and g1 for each `tile` rows of an expert, begun ones whole. Slow: m0 an expert and m1 a row, one expert
    after the other."""

    g0: float
    g1: float
    tile: int
    m0: float
    m1: float

    def fast_s(self, counts: Iterable[int]) -> float:
        return self.g0 + self.g1 * sum(-(-count // self.tile) for count in counts)

    def slow_s(self, counts: Iterable[int]) -> float:
        return sum(self.m0 + self.m1 * count for count in counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bringing in hot experts has to keep to: `fetch_s` each within `available_s`, and slots that are free or held
    by experts of a state below tau: `evictable` are the states of those that may go."""

    fetch_s: float = 0.0
    available_s: float = math.inf
    free: float = math.inf
    evictable: Sequence[int] = ()

    def allow(self, new: int, tau: int) -> bool:
        return new * self.fetch_s <= self.available_s and new <= self.free + len(self._below(tau))

    def room(self, wanted: int, tau: int) -> tuple[int, int]:
        """How many of `wanted` can come in, and the state that those who go for them stay below (0: nobody goes)."""
        below = sorted(self._below(tau))
        in_time = self.available_s / self.fetch_s if self.fetch_s else math.inf
        come = int(min(wanted, in_time, self.free + len(below)))
        go = int(max(0, come - self.free))
        return come, below[go - 1] + 1 if go else 0

    def _below(self, tau: int) -> list[int]:
        return [state for state in self.evictable if state < tau]


@dataclass(frozen=True, slots=True)
class Split:
    fast_s: float
    slow_s: float

    @property
    def makespan_s(self) -> float:
        return max(self.fast_s, self.slow_s)

    @property
    def difference_s(self) -> float:
        return abs(self.fast_s - self.slow_s)

    def key(self, objective: Objective) -> tuple[float, float]:
        """Less is better; ties of the difference go by the makespan and the other way round."""
        both = self.difference_s, self.makespan_s
        return both if objective == "difference" else both[::-1]


def split(hot: Callable[[int], bool], counts: dict[int, int], sides: Sides) -> Split:
    """`counts` are rows by expert; those of 0 rows cost nothing on either side."""
    used = [(expert, count) for expert, count in counts.items() if count > 0]
    return Split(sides.fast_s(c for e, c in used if hot(e)), sides.slow_s(c for e, c in used if not hot(e)))


def choose_threshold(
    states: Sequence[int],
    counts: dict[int, int],
    resident: Iterable[int],
    sides: Sides,
    limits: Limits,
    objective: Objective = "makespan",
) -> tuple[int, Split]:
    """tau from 1 to MOST + 1, and the times that the next window takes if its counts are `counts`: experts of `states`
    tau and above are hot. Of equally good ones the smallest, which keeps most experts in slots.

    MOST + 1 makes nobody hot, so something is always feasible.
    """
    held, best = set(resident), None
    for tau in range(1, MOST + 2):
        new = [expert for expert, state in enumerate(states) if state >= tau and expert not in held]
        if objective == "reachable":
            fast = _reachable(new, tau, states, counts, held, limits)
        elif limits.allow(len(new), tau):
            fast = {expert for expert, state in enumerate(states) if state >= tau}
        else:
            continue
        found = split(fast.__contains__, counts, sides)
        if best is None or found.key(objective) < best[1].key(objective):
            best = tau, found
    assert best is not None
    return best


def _reachable(
    new: Sequence[int], tau: int, states: Sequence[int], counts: dict[int, int], held: set[int], limits: Limits
) -> set[int]:
    """Who is in a slot, hot or not, when those of `new` that can have come, the highest states before the others."""
    come, floor = limits.room(len(new), tau)
    first = sorted(new, key=lambda expert: (-states[expert], -counts.get(expert, 0), expert))
    return {expert for expert in held if states[expert] >= floor}.union(first[:come])


def best_split(counts: Iterable[int], sides: Sides, objective: Objective = "makespan") -> Split:
    """The bound: each expert on whichever side is best, wherever it lies and whatever its utility."""
    rows = {expert: count for expert, count in enumerate(counts) if count > 0}
    return split(best_experts(rows, sides, objective).__contains__, rows, sides)


def best_experts(counts: dict[int, int], sides: Sides, objective: Objective = "makespan") -> set[int]:
    """Who is fast in that.

    Experts of equal counts are alike, so subsets are how many of each count are fast. All are tried up to MOST_SUBSETS;
    above that those that gain most by being fast are, as many as is best.
    """
    experts_of: dict[int, list[int]] = {}
    for expert, count in sorted(counts.items()):
        if count > 0:
            experts_of.setdefault(count, []).append(expert)
    base = sides.fast_s(())
    fast = {count: sides.fast_s([count]) - base for count in experts_of}
    slow = {count: sides.slow_s([count]) for count in experts_of}
    if math.prod(len(alike) + 1 for alike in experts_of.values()) <= MOST_SUBSETS:
        fast_s, slow_s = np.array(base), np.array(0.0)
        for count, alike in experts_of.items():
            some = np.arange(len(alike) + 1)
            fast_s = np.add.outer(fast_s, some * fast[count])
            slow_s = np.add.outer(slow_s, (len(alike) - some) * slow[count])
        taken = np.unravel_index(_least(fast_s, slow_s, objective), fast_s.shape)
        return {expert for n, alike in zip(taken, experts_of.values(), strict=True) for expert in alike[:n]}
    gain = {count: slow[count] / fast[count] if fast[count] else math.inf for count in experts_of}
    order = [expert for count in sorted(experts_of, key=lambda count: -gain[count]) for expert in experts_of[count]]
    fast_s = base + np.cumsum([0.0, *(fast[counts[expert]] for expert in order)])
    slow_s = sides.slow_s(counts[expert] for expert in order) - np.cumsum([0.0, *(slow[counts[e]] for e in order)])
    return set(order[: _least(fast_s, slow_s, objective)])


def _least(fast_s: Array, slow_s: Array, objective: Objective) -> int:
    """Index, flat, of the best split."""
    difference, makespan = np.abs(fast_s - slow_s).ravel(), np.maximum(fast_s, slow_s).ravel()
    first, second = (difference, makespan) if objective == "difference" else (makespan, difference)
    return int(np.lexsort((second, first))[0])


def fit_line(samples: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Intercept and slope, neither negative, of least squares through (x, seconds) pairs; at least one."""
    x, seconds = np.array(list(samples), float).T
    spread = ((x - x.mean()) ** 2).sum()
    slope = float(((x - x.mean()) * (seconds - seconds.mean())).sum() / spread) if spread else 0.0
    if slope <= 0:
        return float(seconds.mean()), 0.0
    intercept = float(seconds.mean() - slope * x.mean())
    if intercept < 0:
        return 0.0, float((x * seconds).sum() / (x * x).sum())
    return intercept, slope


def fit_sides(
    fast: Iterable[tuple[int, float]], slow: Iterable[tuple[int, float]], *, tile: int = 1, experts: int = 1
) -> LinearSides:
    """From (rows of each expert, seconds) measured on this host: fast calls over `experts` experts of so many rows
    each, slow ones over one."""
    g0, g1 = fit_line((experts * -(-rows // tile), seconds) for rows, seconds in fast)
    m0, m1 = fit_line(slow)
    return LinearSides(g0=g0, g1=g1, tile=tile, m0=m0, m1=m1)
