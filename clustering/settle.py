"""The last step for small problems: experts traded by the objective itself, rows assigned anew each time."""

import itertools

import numpy as np

from smoe.clustering.incumbent import Incumbent
from smoe.clustering.problem import Array
from smoe.clustering.row_trades import FEW_ROWS
from smoe.clustering.units import Units

FEW_PAIRS = 200
KICKS, KICK_SWAPS = 8, 2
ROW_KICKS = 48


def trade_experts(best: Incumbent, units: Units, rng: np.random.Generator) -> None:
    """Every swap of two units judged by the objective, from the best placement and from shaken ones."""
    pairs = [(a, b) for a, b in itertools.combinations(range(units.num_units), 2) if units.kind[a] == units.kind[b]]
    if not 0 < len(units.mass) <= FEW_ROWS or not 0 < len(pairs) <= FEW_PAIRS:
        return
    best.row_kicks = ROW_KICKS
    _descend(best, best.device, pairs)
    for _ in range(KICKS):
        shaken = best.device.copy()
        for index in rng.integers(len(pairs), size=KICK_SWAPS).tolist():
            a, b = pairs[index]
            shaken[a], shaken[b] = shaken[b], shaken[a]
        _descend(best, shaken, pairs)


def _descend(best: Incumbent, start: Array, pairs: list[tuple[int, int]]) -> None:
    here, key = start, best.offer(start)
    improved = True
    while improved:
        improved = False
        for a, b in pairs:
            if here[a] == here[b]:
                continue
            swapped = here.copy()
            swapped[a], swapped[b] = here[b], here[a]
            found = best.offer(swapped)
            if found < key:
                here, key, improved = swapped, found, True
