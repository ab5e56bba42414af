"""The alpha-beta model of a link: an exchange takes alpha, and beta for each byte through the busiest rank's link."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from smoe.bench.comm.cases import Case
from smoe.bench.comm.formula import LayerBytes
from smoe.collectives.wire import exchange_s

Point = tuple[int, float]
"""(bytes, seconds) of one exchange."""


@dataclass(frozen=True, slots=True)
class Line:
    alpha_s: float
    beta_s: float

    def seconds(self, nbytes: float) -> float:
        return self.alpha_s + self.beta_s * nbytes

    @property
    def mbit_per_s(self) -> float:
        return 8e-6 / self.beta_s


def fit(points: Sequence[Point]) -> Line:
    """Least squares of relative errors, so that small exchanges count as much as large ones. `points` have two sizes
    or more; neither coefficient is below zero."""
    nbytes, seconds = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    weighed = np.stack([1 / seconds, nbytes / seconds], axis=1)
    from scipy.optimize import nnls

    alpha, beta = nnls(weighed, np.ones(len(seconds)))[0].tolist()
    return Line(alpha, max(beta, 1e-15))


def predict(lines: Mapping[str, Line], case: Case, layer: LayerBytes, ranks: int) -> float:
    """Seconds of communication in one layer: each of its exchanges by `lines`, "all_to_all" or "all_gather"."""
    if ranks == 1:  # and there are no lines
        return 0.0
    spread, gather = lines["all_to_all"].seconds, lines["all_gather"].seconds
    return sum(exchange_s(case.schedule, layer.wire, ranks, spread, gather, busiest=layer.busiest_share).values())
