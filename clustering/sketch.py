"""A smaller problem to search in: the rows that matter most, and a sample that stands for the rest."""

from dataclasses import replace

import numpy as np
from scipy.sparse import csc_array, csr_array

from smoe.clustering.units import Units


def sketch(units: Units, rows: int, rng: np.random.Generator) -> Units:
    """About `rows` rows of `units`: half of them those with most activations, half drawn from the others with a chance
    by their activations, scaled to stand for all of those. Loads stay those of all rows.

    A row's value is proportional to its counts, so the sketch's value is that of all rows but for the sampling.
    Scales are whole numbers, so that sums of counts stay exact.
    """
    by_row = csr_array(units.counts)
    total = np.asarray(by_row.sum(axis=1)).ravel()
    if len(total) <= rows:
        return units
    order = np.argsort(-total, kind="stable")
    kept, others = order[: rows // 2], order[rows // 2 :]
    draws = rows - len(kept)
    expected = total[others] * (draws / max(total[others].sum(), 1.0))
    drawn = _round(expected, rng)
    taken = others[drawn > 0]
    scale = _round(drawn[drawn > 0] / expected[drawn > 0], rng)
    taken, scale = taken[scale > 0], scale[scale > 0]
    chosen = np.concatenate([kept, taken])
    weight = np.concatenate([np.ones(len(kept)), scale])
    counts = csr_array(by_row[chosen])
    counts.data *= np.repeat(weight, np.diff(counts.indptr))
    return replace(units, counts=csc_array(counts), mass=units.mass[chosen] * weight)


def _round(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """To a whole number next to each, so that the mean stays."""
    return np.floor(values + rng.random(len(values)))
