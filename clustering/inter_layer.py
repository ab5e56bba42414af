"""Placement by the next layer alone, ExFlow's idea: experts whose tokens go on to the same experts share a device."""

import numpy as np

from smoe.clustering.problem import Array, LayerProblem
from smoe.clustering.sampling import draw, even_chance
from smoe.clustering.units import Units, in_order, nearest_placement

STARTS = 16
ROUNDS = 100


def inter_layer(problem: LayerProblem, units: Units, rng: np.random.Generator) -> list[Array]:
    """This layer and the next are placed together so that most of `next_counts` stays on its device: in turn each by
    its best assignment to the other, from several random starts. The next layer's placement is then let go, as its
    own problem decides it. The last layer has no next one and stays in order."""
    if problem.next_counts is None:
        return [in_order(units)]
    gather = np.zeros((problem.num_experts, units.num_units))
    gather[np.arange(problem.num_experts), units.unit_of_expert] = 1.0
    flow = gather.T @ problem.next_counts.astype(np.float64) @ gather
    found = [_one(units, flow, device) for device in draw(units, even_chance(units), STARTS, None, rng)]
    return [max(found, key=lambda pair: pair[0])[1]]


def _one(units: Units, flow: Array, device: Array) -> tuple[float, Array]:
    """(flow that stays, placement of this layer)."""
    kept = -1.0
    for _ in range(ROUNDS):
        after = nearest_placement(units, flow.T @ units.one_hot(device))
        before = nearest_placement(units, flow @ units.one_hot(after))
        stays = float(flow[before[:, None] == after].sum())
        if stays <= kept:
            break
        kept, device = stays, before
    return kept, device
