"""Tokens that travel together: many sequences a row each, as in decoding, or a stretch of one, as in prefill."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smoe.clustering.align import align, capacity_of
from smoe.clustering.journey import Journey
from smoe.clustering.local import imbalance
from smoe.clustering.lookup import Destinations
from smoe.core.route_trace import RouteTrace

Array = npt.NDArray[Any]

ROWS = 256
MOST = 64
FACTORS = (1.0, 1.25, 1.5, 2.0)
"""Capacity over the mean; 1 is equal chunks."""
LEAST_SHARE = 4
"""A batch has at least a fourth of the rows asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """LAR of batches whose devices take `factor` times the mean number of rows at most, and the mean over batches of
    the fullest device over the mean, before and after. `factor` None: no bound. `lar` is a value a layer."""

    batches: str
    rows: int
    factor: float | None
    lar: tuple[float, ...]
    imbalance_before: float
    imbalance_after: float

    @property
    def mean_lar(self) -> float:
        return float(np.mean(self.lar))


def mixed_batches(trace: RouteTrace, rows: int = ROWS, *, seed: int = 0, most: int = MOST) -> list[Array]:
    """Tokens drawn from all sequences, none twice."""
    order = np.random.default_rng(seed).permutation(trace.num_tokens)
    return _enough([order[i : i + rows] for i in range(0, len(order), rows)], rows, most)


def sequence_batches(trace: RouteTrace, rows: int = ROWS, *, most: int = MOST) -> list[Array]:
    """Consecutive tokens of one sequence, spread evenly over the trace."""
    starts = trace.sequence_start.tolist()
    cut = [
        np.arange(i, min(i + rows, last))
        for first, last in itertools.pairwise(starts)
        for i in range(first, last, rows)
    ]
    return _enough(cut, rows, most)


def align_batches(
    kind: str, batches: Sequence[Array], journey: Journey, wishes: Sequence[Destinations], top_k: int
) -> list[Aligned]:
    """`wishes` are a layer's destinations of all tokens of the trace."""
    num_devices = journey.local.shape[2]
    rows = np.concatenate(batches)
    found = []
    for factor in (None, *FACTORS):
        lar, before, after = [], [], []
        for layer, wish in enumerate(wishes):
            placed = [wish.device[b] if factor is None else place_batch(wish, b, num_devices, factor) for b in batches]
            lar.append(float(journey.local[layer, rows, np.concatenate(placed)].mean()) / top_k)
            before += [imbalance(np.bincount(wish.device[b], minlength=num_devices)) for b in batches]
            after += [imbalance(np.bincount(each, minlength=num_devices)) for each in placed]
        found.append(
            Aligned(
                batches=kind,
                rows=round(len(rows) / len(batches)),
                factor=factor,
                lar=tuple(lar),
                imbalance_before=float(np.mean(before)),
                imbalance_after=float(np.mean(after)),
            )
        )
    return found


def place_batch(wish: Destinations, batch: Array, num_devices: int, factor: float) -> Array:
    """[len(batch)] devices."""
    capacity = capacity_of(len(batch), num_devices, factor)
    return align(wish.device[batch], wish.second[batch], wish.confidence[batch], num_devices, capacity)


def _enough(batches: list[Array], rows: int, most: int) -> list[Array]:
    """Those not too small (all, if all are), and of them `most` spread evenly."""
    large = [batch for batch in batches if len(batch) * LEAST_SHARE >= rows] or batches
    chosen = np.unique(np.linspace(0, len(large) - 1, min(most, len(large))).round().astype(int))
    return [large[i] for i in chosen]
