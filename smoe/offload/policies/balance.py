"""Which experts of a layer run from slots and which where they are, so that both sides end together (spec P3.1 b).

The fast side computes hot experts from slots, the slow side cold ones in place, at the same time. A threshold tau of
utility divides them; it can only be one of few integers, so all are tried.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np

from smoe.offload.policies.utility_states import MOST

Objective = Literal["difference", "makespan"]
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
        slots = self.free + sum(state < tau for state in self.evictable)
        return new * self.fetch_s <= self.available_s and new <= slots


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
        new = sum(state >= tau and expert not in held for expert, state in enumerate(states))
        if limits.allow(new, tau):
            found = split(lambda expert, tau=tau: states[expert] >= tau, counts, sides)  # type: ignore[misc]
            if best is None or found.key(objective) < best[1].key(objective):
                best = tau, found
    assert best is not None
    return best


def best_split(counts: Iterable[int], sides: Sides, objective: Objective = "makespan") -> Split:
    """The bound: each expert on whichever side is best, wherever it lies and whatever its utility.

    Experts of equal counts are alike, so subsets are how many of each count are fast. All are tried up to MOST_SUBSETS;
    above that those that gain most by being fast are, as many as is best.
    """
    of_count = sorted(Counter(count for count in counts if count > 0).items())
    base = sides.fast_s(())
    fast = [sides.fast_s([count]) - base for count, _ in of_count]
    slow = [sides.slow_s([count]) for count, _ in of_count]
    fast_s, slow_s = np.array([base]), np.array([0.0])
    if math.prod(number + 1 for _, number in of_count) <= MOST_SUBSETS:
        for (_, number), fast_one, slow_one in zip(of_count, fast, slow, strict=True):
            some = np.arange(number + 1)
            fast_s = np.add.outer(fast_s, some * fast_one).ravel()
            slow_s = np.add.outer(slow_s, (number - some) * slow_one).ravel()
    else:
        gain = sorted(range(len(of_count)), key=lambda i: -(slow[i] / fast[i] if fast[i] else math.inf))
        order = [i for i in gain for _ in range(of_count[i][1])]
        fast_s = base + np.cumsum([0.0, *(fast[i] for i in order)])
        slow_s = sum(slow[i] for i in order) - np.cumsum([0.0, *(slow[i] for i in order)])
    difference, makespan = np.abs(fast_s - slow_s), np.maximum(fast_s, slow_s)
    first, second = (difference, makespan) if objective == "difference" else (makespan, difference)
    best = np.lexsort((second, first))[0]
    return Split(float(fast_s[best]), float(slow_s[best]))


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
