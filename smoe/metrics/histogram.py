"""Counts by bucket: what a Prometheus histogram is made of, and quantiles of it."""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """`bounds` ascend; a value belongs to the first one that is not below it, or to the last bucket, without bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        assert list(bounds) == sorted(set(bounds))
        self.bounds = tuple(bounds)
        self.reset()

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[int]:
        """Values up to each bound, and at last all of them."""
        counted, sums = 0, []
        for count in self._counts:
            counted += count
            sums.append(counted)
        return sums

    def reset(self) -> None:
        self._counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0


def quantile(bounds: Sequence[float], cumulative: Sequence[float], share: float) -> float | None:
    """The value that `share` of the counted ones do not exceed, straight between two bounds: as PromQL's
    histogram_quantile, so the first bucket begins at 0 and what is past the last bound counts as that.

    `cumulative` has one entry more than `bounds`. None where nothing was counted.
    """
    wanted = share * cumulative[-1]
    if not cumulative[-1]:
        return None
    below, low = 0.0, 0.0
    for bound, count in zip(bounds, cumulative, strict=False):
        if count >= wanted and count > below:
            return low + (bound - low) * (wanted - below) / (count - below)
        below, low = count, bound
    return bounds[-1]


def steps_1_2_5(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, ... up to `most` or the first above it."""
    found: list[float] = []
    unit = 1
    while True:
        for digit in (1, 2, 5):
            found.append(float(digit * unit))
            if digit * unit >= most:
                return tuple(found)
        unit *= 10
