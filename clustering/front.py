"""The front of local share against imbalance that a solver reaches as its balance varies."""

import itertools
from collections.abc import Sequence

Point = tuple[float, float]
"""(imbalance, local share)."""


def front(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats in both, by rising imbalance."""
    kept: list[Point] = []
    for imbalance, share in sorted(points, key=lambda point: (point[0], -point[1])):
        if not kept or share > kept[-1][1]:
            kept.append((imbalance, share))
    return kept


def share_at(points: Sequence[Point], imbalance: float) -> float | None:
    """The front's local share at an imbalance, between two points in proportion (layers may be mixed so); beyond the
    last point its share. None below the first."""
    line = front(points)
    if not line or imbalance < line[0][0]:
        return None
    for (x0, y0), (x1, y1) in itertools.pairwise(line):
        if imbalance < x1:
            return y0 + (y1 - y0) * (imbalance - x0) / (x1 - x0)
    return line[-1][1]


def above(points: Sequence[Point], others: Sequence[Point]) -> float | None:
    """The least lead over the others' points, at their imbalance; those left of the front do not count. Negative
    where one lies above it, None where none counts."""
    leads = [ours - share for at, share in others if (ours := share_at(points, at)) is not None]
    return min(leads, default=None)
