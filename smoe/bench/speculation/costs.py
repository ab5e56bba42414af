"""What computing takes with every expert in memory, by rows of one forward: for the simulator.

Shapes: D hidden, K experts a row.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from smoe.models.bank import ExpertBank, InMemory, RoutedRows
from smoe.models.batch import Batch
from smoe.models.decoder import Decoder, Params
from smoe.models.kv import KVCache
from smoe.models.loading import Checkpoint
from smoe.sim.compute import ComputeModel

ROWS = (1, 2, 5, 9, 17, 33, 65)


@dataclass(frozen=True, slots=True)
class Costs:
    """`dense_s[rows]` of a layer beside its experts, in a forward of so many rows; an expert's first row takes `row_s`,
    each further one `further_s`."""

    dense_s: dict[int, float]
    row_s: float
    further_s: float

    def model(self, rows: int) -> ComputeModel:
        """Of forwards of about `rows` rows."""
        known = sorted(self.dense_s)
        layer_s = float(np.interp(rows, known, [self.dense_s[each] for each in known]))
        return ComputeModel(layer_s, self.row_s, None, self.further_s)


class _Timed(InMemory):
    """A bank, and the time spent in it."""

    def __init__(self, bank: ExpertBank) -> None:
        self._bank, self.seconds, self.experts, self.choices = bank, 0.0, 0, 0

    def apply(self, rows: RoutedRows, residual_TD: torch.Tensor) -> torch.Tensor:
        self.experts += len(np.unique(rows.ids_TK.numpy()))
        self.choices += rows.ids_TK.numel()
        began = time.perf_counter()
        out_TD = self._bank.apply(rows, residual_TD)
        self.seconds += time.perf_counter() - began
        return out_TD

    def close(self) -> None:
        self._bank.close()


def measure_costs(
    checkpoint: Checkpoint, params: Params, bank: ExpertBank, dtype: torch.dtype, text: Sequence[int], repeats: int = 5
) -> Costs:
    """Forwards of the first rows of `text`; medians."""
    spec = checkpoint.spec
    layers = len(spec.layers)
    dense_s, moe_s, work = {}, [], []
    kv = KVCache(spec, num_rows=max(ROWS), num_states=1, dtype=dtype)
    for rows in [rows for rows in ROWS if rows <= len(text)]:
        times: list[tuple[float, float]] = []
        for _ in range(repeats):
            timed = _Timed(bank)
            decoder = Decoder(spec, params, timed, dtype=dtype)
            batch = Batch.build([(list(text[:rows]), 0, 0, 0)], logit_rows=list(range(rows)))
            began = time.perf_counter()
            with torch.inference_mode():
                decoder.forward(batch, kv)
            times.append((time.perf_counter() - began - timed.seconds, timed.seconds))
        outside, inside = (median(each) for each in zip(*times, strict=True))
        dense_s[rows] = outside / layers
        moe_s.append(inside)
        work.append((timed.experts, timed.choices - timed.experts))
    return Costs(dense_s, *_fit(work, moe_s))


def _fit(work: Sequence[tuple[int, int]], seconds: Sequence[float]) -> tuple[float, float]:
    """Seconds of a first and of a further row, neither below 0, for the least sum of squared relative errors."""
    scale = 1 / np.array(seconds)
    found = np.linalg.lstsq(np.array(work) * scale[:, None], np.ones(len(seconds)), rcond=None)[0]
    if found.min() >= 0:
        return float(found[0]), float(found[1])
    firsts = np.array([experts for experts, _ in work]) * scale
    return float(firsts.sum() / (firsts**2).sum()), 0.0
