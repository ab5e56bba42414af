"""Alternating greedy placement with swaps (Sem-MoE's published listing, with the coefficients of its known guide)."""

from dataclasses import dataclass

import numpy as np

from smoe.clustering.affinity import co_activation
from smoe.clustering.problem import Array, LayerProblem
from smoe.clustering.refine import SwapSearch
from smoe.clustering.sampling import draw, even_chance
from smoe.clustering.units import Units


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternating:
    """`steps` times: experts, the hottest first, go where `alpha` affinity to the experts there + `beta` affinity to
    the rows there - `gamma` load is most; then `swaps` random swaps are kept if they gain; then every row goes where
    most of its activations are. Affinities are shares of an expert's own, loads are over a device's mean."""

    alpha: float = 1.0
    beta: float = 1.0
    gamma: float = 1.0
    steps: int = 8
    swaps: int = 64

    def __call__(self, problem: LayerProblem, units: Units, rng: np.random.Generator) -> list[Array]:
        search = SwapSearch(units)
        between = co_activation(units)
        between /= np.maximum(between.sum(axis=1, keepdims=True), 1e-300)
        device = draw(units, even_chance(units), 1, None, rng)[0]
        found = []
        for _ in range(self.steps):
            device = self._place(units, between, device)
            search.start(device)
            for _ in range(self.swaps):
                _try_random_swap(search, rng)
            device = search.device.copy()
            found.append(device)
        return found

    def _place(self, units: Units, between: Array, device: Array) -> Array:
        rows = np.asarray(units.counts @ units.one_hot(device)).argmax(axis=1)
        with_rows = np.asarray(units.counts.T @ (rows[:, None] == np.arange(units.num_devices)).astype(np.float64))
        with_rows /= np.maximum(units.load, 1e-300)[:, None]
        mean = max(float(units.load.sum()) / units.num_devices, 1e-300)
        free = units.slots.copy()
        load = np.zeros(units.num_devices)
        with_experts = np.zeros((units.num_units, units.num_devices))
        placed = np.empty(units.num_units, dtype=np.int64)
        for unit in np.argsort(-units.load, kind="stable"):
            score = self.alpha * with_experts[unit] + self.beta * with_rows[unit] - self.gamma * load / mean
            kind = units.kind[unit]
            placed[unit] = np.where(free[kind] > 0, score, -np.inf).argmax()
            free[kind, placed[unit]] -= 1
            load[placed[unit]] += units.load[unit]
            with_experts[:, placed[unit]] += between[:, unit]
        return placed


def _try_random_swap(search: SwapSearch, rng: np.random.Generator) -> None:
    a, b = (int(unit) for unit in rng.integers(search.units.num_units, size=2))
    same_kind = search.units.kind[a] == search.units.kind[b]
    if same_kind and search.device[a] != search.device[b] and search.swap_gain(a, b) > 0.0:
        search.swap(a, b)
