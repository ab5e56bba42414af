"""How good a table is on tokens that it was not counted on. Axes: T tokens, G devices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TableQuality:
    """Means over layers. `decides`: the share of tokens judged. `local`: the share of their activations on the device
    that the table says. `any_local`: tokens with an expert or more there. `precision`, `recall`, `f1`: of the device
    said against the device of most experts, per device, then the mean over devices that hold tokens.

    `calibration_error`: how far the share said is from the one that came, mean over tokens in BINS bins of it; `bins`
    are (tokens, mean said, mean come) over all layers.
    """

    decides: float
    local: float
    any_local: float
    precision: float
    recall: float
    f1: float
    calibration_error: float
    bins: tuple[tuple[int, float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Said:
    """One layer's answers for all tokens: `device`, `confidence` [T]; `decided` [T] bool, None for all. Beside them
    what came: `local` [T, G] activations and `majority` [T]."""

    device: Array
    confidence: Array
    local: Array
    majority: Array
    decided: Array | None = None


def table_quality(layers: Sequence[Said], top_k: int) -> TableQuality:
    measured, bins = [], np.zeros((BINS, 3))
    for said in layers:
        rows = np.arange(len(said.device)) if said.decided is None else np.flatnonzero(said.decided)
        decides = len(rows) / len(said.device)
        if len(rows) == 0:
            measured.append((decides, *[np.nan] * 6))
            continue
        device, come = said.device[rows], said.local[rows, said.device[rows]]
        layer_bins = _bins(said.confidence[rows].astype(np.float64), come / top_k)
        bins += layer_bins
        off = float(np.abs(layer_bins[:, 1] - layer_bins[:, 2]).sum()) / len(rows)
        scores = macro_scores(device, said.majority[rows], said.local.shape[1])
        measured.append((decides, float(come.mean()) / top_k, float((come > 0).mean()), *scores, off))
    columns = np.array(measured).T
    decides, local, any_local, precision, recall, f1, error = (_mean(column) for column in columns)
    return TableQuality(
        decides=decides,
        local=local,
        any_local=any_local,
        precision=precision,
        recall=recall,
        f1=f1,
        calibration_error=error,
        bins=tuple((int(n), float(said / n), float(come / n)) for n, said, come in bins if n),
    )


def macro_scores(said: Array, true: Array, num_devices: int) -> tuple[float, float, float]:
    """(precision, recall, F1), each the mean over devices that are true somewhere."""
    table = np.bincount(true.astype(np.int64) * num_devices + said, minlength=num_devices**2)
    right = table.reshape(num_devices, num_devices)
    hits, said_so, truly = right.diagonal().astype(np.float64), right.sum(axis=0), right.sum(axis=1)
    there = truly > 0
    precision = hits[there] / np.maximum(said_so[there], 1)
    recall = hits[there] / truly[there]
    f1 = 2 * hits[there] / (said_so[there] + truly[there])
    return float(precision.mean()), float(recall.mean()), float(f1.mean())


def _bins(said: Array, come: Array) -> Array:
    """[BINS, 3] count, sum of what was said, sum of what came."""
    index = np.minimum((said * BINS).astype(np.int64), BINS - 1)
    weights = (None, said, come)
    return np.stack([np.bincount(index, weights=weight, minlength=BINS) for weight in weights], axis=1)


def _mean(column: Array) -> float:
    """Over the layers where the table decides anything; 0 where it never does."""
    return float(np.nanmean(column)) if not np.isnan(column).all() else 0.0
