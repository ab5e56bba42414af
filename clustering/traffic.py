"""Rows that travel between devices in one MoE layer, counted, and by the formulas of Speculative MoE.

A row is one token's hidden state. With T rows on G devices and k experts a token, over all devices together:
one ring reduce-scatter or all-gather moves (G - 1) * T rows; one all-to-all pass k * T * (1 - LAR), or with
de-duplication a row for each pair of a token and another device that it needs.

    allreduce    all-reduce, all-to-all twice, all-gather       3 rings + 2 passes, tokens where they happen to be
    scatter      reduce-scatter instead                         2 rings + 2 passes, tokens where they happen to be
    speculative  shuffled reduce-scatter and all-gather         2 rings + 2 passes, tokens where the tables say
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smoe.core.placement_maps import computing_device

Array = npt.NDArray[Any]

RINGS = {"allreduce": 3, "scatter": 2, "speculative": 2}
SCHEDULES = tuple(RINGS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pass:
    """One all-to-all, counted. `activations`, `rows` [G, G]: from a token's device to the one that computes, rows
    without duplicates; the diagonal stays at home."""

    activations: Array
    rows: Array

    @property
    def remote_activations(self) -> int:
        return int(self.activations.sum() - np.trace(self.activations))

    @property
    def remote_rows(self) -> int:
        return int(self.rows.sum() - np.trace(self.rows))

    @property
    def lar(self) -> float:
        return float(np.trace(self.activations) / max(1, self.activations.sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Rows moved in a layer for each token, all devices together, one schedule. `formula` is what the measured LAR
    gives and equals `counted` where all-to-all rows are not de-duplicated; `deduplicated` is counted with that."""

    schedule: str
    lar: float
    counted: float
    formula: float
    deduplicated: float


def computed_at(expert_ids: Array, held: Array, at: Array) -> Array:
    """[T, G] activations that each device computes for a token on device `at` [T], as `computing_device` says."""
    counts = np.zeros((len(at), held.shape[1]), dtype=np.uint8)
    rows, device = np.arange(len(at)), computing_device(held)
    for slot in range(expert_ids.shape[1]):
        counts[rows, device[expert_ids[:, slot], at]] += 1
    return counts


def count_pass(expert_ids: Array, held: Array, at: Array) -> Pass:
    num_devices = held.shape[1]
    computed = computed_at(expert_ids, held, at)
    home = (at[:, None] == np.arange(num_devices)).astype(np.int64)
    return Pass(activations=home.T @ computed, rows=home.T @ (computed > 0))


def ring_rows(num_rows: int, num_devices: int) -> int:
    """One reduce-scatter or all-gather of equal chunks: every device sends all chunks but one."""
    return num_devices * (num_devices - 1) * -(-num_rows // num_devices)


def formula_rows(schedule: str, num_rows: int, num_devices: int, top_k: int, lar: float) -> float:
    return RINGS[schedule] * (num_devices - 1) * num_rows + 2 * top_k * num_rows * (1 - lar)


def traffic(schedule: str, expert_ids: Array, held: Array, at: Array) -> Traffic:
    """One layer. `at` [T] is where the schedule's tokens are when the experts are due."""
    num_rows, num_devices = len(at), held.shape[1]
    counted = count_pass(expert_ids, held, at)
    rings = RINGS[schedule] * ring_rows(num_rows, num_devices)
    return Traffic(
        schedule=schedule,
        lar=counted.lar,
        counted=(rings + 2 * counted.remote_activations) / num_rows,
        formula=formula_rows(schedule, num_rows, num_devices, expert_ids.shape[1], counted.lar) / num_rows,
        deduplicated=(rings + 2 * counted.remote_rows) / num_rows,
    )
