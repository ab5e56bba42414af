"""How much a routing asks of each expert here: -1 is asked of another device."""

import math

import numpy as np

from smoe.offload.policies.protocols import Routing


def requests(routing: Routing) -> dict[int, int]:
    """expert -> rows that chose it."""
    ids = routing.ids
    if len(ids) == 1:
        one = dict.fromkeys(ids[0].tolist(), 1)
        one.pop(-1, None)
        return one
    counts = np.bincount(ids.ravel() + 1)[1:]
    experts = np.flatnonzero(counts)
    return dict(zip(experts.tolist(), counts[experts].tolist(), strict=True))


def gate_mass(routing: Routing) -> dict[int, float]:
    """expert -> sum over rows of its weight, where each row's weights are scaled to sum to 1.

    Rows whose weights are not finite count for nothing.
    """
    assert routing.weights is not None
    if len(routing.ids) == 1:
        row = routing.weights[0].tolist()
        total = sum(row)
        if not (math.isfinite(total) and total > 0):
            return {}
        chosen = zip(routing.ids[0].tolist(), row, strict=True)
        return {expert: weight / total for expert, weight in chosen if expert >= 0}
    sums = routing.weights.sum(axis=-1, keepdims=True)
    sound = np.isfinite(sums[:, 0]) & (sums[:, 0] > 0)
    ids, shares = routing.ids[sound], routing.weights[sound] / sums[sound]
    mass = np.bincount(ids.ravel() + 1, weights=shares.ravel())[1:]
    experts = np.unique(ids[ids >= 0])
    return dict(zip(experts.tolist(), mass[experts].tolist(), strict=True))
