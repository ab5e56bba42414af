"""The highest rate that a system bears, by steps and bisection. Pure: whoever asks runs the trials."""

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Search:
    """`rate` held and the lowest rate above it that was tried did not; 0 where none held. `trials` in their order.

    `bounded`: one was tried above that did not hold; else `rate` is only the highest that was tried.
    """

    rate: float
    trials: tuple[tuple[float, bool], ...]

    @property
    def bounded(self) -> bool:
        return any(not held for _, held in self.trials)


def highest_rate(
    holds: Callable[[float], bool],
    *,
    start: float,
    tolerance: float = 0.05,
    factor: float = 2.0,
    lowest: float | None = None,
    highest: float | None = None,
) -> Search:
    """Multiplies or divides by `factor` from `start` on until one rate holds and another does not, then halves their
    ratio (by its root) until it is at most 1 + `tolerance`. Not below `lowest` (default: start / 1,024) nor above
    `highest` (start * 1,048,576).

    `holds` should be true up to some rate and false beyond; each rate is tried once.
    """
    lowest = start / 1024 if lowest is None else lowest
    highest = start * 1_048_576 if highest is None else highest
    assert 0 < lowest <= start <= highest, f"{lowest} <= {start} <= {highest}"
    assert min(tolerance, factor - 1) > 0, f"tolerance {tolerance}, factor {factor}"
    trials: list[tuple[float, bool]] = []

    def tried(rate: float) -> bool:
        held = holds(rate)
        trials.append((rate, held))
        return held

    good, bad = (start, None) if tried(start) else (None, start)
    while bad is None and good is not None and good < highest:
        rate = min(factor * good, highest)
        good, bad = (rate, None) if tried(rate) else (good, rate)
    while good is None and bad is not None and bad > lowest:
        rate = max(bad / factor, lowest)
        good, bad = (rate, bad) if tried(rate) else (None, rate)
    while good is not None and bad is not None and bad / good > 1 + tolerance:
        rate = math.sqrt(good * bad)
        good, bad = (rate, bad) if tried(rate) else (good, rate)
    return Search(good or 0.0, tuple(trials))
