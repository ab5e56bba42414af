"""Paired bootstrap intervals of a rise in perplexity. The unit that is drawn again is a text, never a token."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Nats = npt.NDArray[np.float64]
"""[n] -log p of each scored token of one text."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and the bounds of its interval."""

    value: float
    low: float
    high: float


def perplexity(texts: Sequence[Nats]) -> float:
    return float(np.exp(np.concatenate(texts).mean()))


def paired_rise(
    groups: Sequence[Sequence[tuple[Nats, Nats]]], *, resamples: int = 10_000, seed: int = 0, level: float = 0.95
) -> Interval:
    """Perplexity of the first of each pair over that of the second, minus 1, with its percentile interval.

    A pair is one text scored twice. Each group's texts are drawn again from that group alone, so that domains keep
    their share.
    """
    generator = np.random.default_rng(seed)
    gained, counted = np.zeros(resamples), np.zeros(resamples)
    total_gain, total_count = 0.0, 0
    for pairs in groups:
        gains = np.array([float(first.sum() - second.sum()) for first, second in pairs])
        counts = np.array([len(first) for first, _ in pairs])
        drawn = generator.integers(len(pairs), size=(resamples, len(pairs)))
        gained += gains[drawn].sum(axis=1)
        counted += counts[drawn].sum(axis=1)
        total_gain += float(gains.sum())
        total_count += int(counts.sum())
    rises = np.expm1(gained / counted)
    low, high = np.quantile(rises, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(np.expm1(total_gain / total_count)), float(low), float(high))
