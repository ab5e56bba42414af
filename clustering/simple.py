"""Placements that do not look at who uses what together: in order, at random, and by load alone."""

import numpy as np

from smoe.clustering.problem import Array, LayerProblem
from smoe.clustering.sampling import draw, even_chance
from smoe.clustering.units import Units, in_order


def contiguous(problem: LayerProblem, units: Units, rng: np.random.Generator) -> list[Array]:
    return [in_order(units)]


def random(problem: LayerProblem, units: Units, rng: np.random.Generator) -> list[Array]:
    return [draw(units, even_chance(units), 1, None, rng)[0]]


def eplb(problem: LayerProblem, units: Units, rng: np.random.Generator) -> list[Array]:
    """DeepSeek EPLB's balanced packing, without replicas: experts by load, the heaviest first, each to the device of
    least load that has a slot."""
    free = units.slots.copy()
    load = np.zeros(units.num_devices)
    device = np.empty(units.num_units, dtype=np.int64)
    for unit in np.argsort(-units.load, kind="stable"):
        kind = units.kind[unit]
        device[unit] = np.where(free[kind] > 0, load, np.inf).argmin()
        free[kind, device[unit]] -= 1
        load[device[unit]] += units.load[unit]
    return [device]
