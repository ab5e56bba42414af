"""Experts in memory, to be computed in place."""

import random

import numpy as np
import torch

from smoe.kernels import ExpertTable, ExpertTensors
from smoe.models.bank import expert_table
from tests.offload.support import ExpertFiles


class ResidentPlace:
    """An InPlace that can compute `share` of what it is asked for, each time others. Of what is not held its table
    has NaN."""

    def __init__(self, files: ExpertFiles, dtype: torch.dtype, share: float = 1.0, seed: int = 0) -> None:
        self.held: set[tuple[int, int]] = set()
        self.share, self._chance = share, random.Random(seed)
        self._bank, self._spec = files.resident(dtype), files.spec
        self._nothing = {
            layer: ExpertTensors(*[t if t is None else torch.full_like(t, torch.nan) for t in table.tensors(0)])
            for layer, table in self._bank._tables.items()
        }
        self._tables = {
            layer: expert_table(files.spec.moe(layer), files.spec.hidden, files.num_experts + 1)
            for layer in files.moe_layers
        }
        for layer, table in self._tables.items():
            for slot in range(files.num_experts + 1):
                table.set(slot, self._nothing[layer])

    def hold(self, layer: int, experts: list[int]) -> frozenset[int]:
        held = [expert for expert in experts if self._chance.random() < self.share]
        for expert in held:
            self.held.add((layer, expert))
            self._tables[layer].set(expert + 1, self._bank._tables[layer].tensors(expert))
        return frozenset(held)

    def release(self) -> None:
        for layer, expert in self.held:
            self._tables[layer].set(expert + 1, self._nothing[layer])
        self.held.clear()

    def table(self, layer: int) -> ExpertTable:
        return self._tables[layer]

    def expert2slot(self, layer: int) -> np.ndarray:
        """Also of what is not held."""
        return np.arange(1, self._spec.moe(layer).router.num_experts + 1, dtype=np.int32)
