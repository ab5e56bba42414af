"""Placements drawn from a matrix of probabilities, and that matrix learned from the best of them."""

import numpy as np

from smoe.clustering.problem import Array
from smoe.clustering.units import Units

# A device that is full, or would pass its load, is still possible if nothing else is.
UNLIKELY = 1e-9


def even_chance(units: Units) -> Array:
    """[U, G] each device by its slots for a unit's kind."""
    slots = units.slots[units.kind].astype(np.float64)
    return np.asarray(slots / slots.sum(axis=1, keepdims=True))


def draw(units: Units, chance: Array, samples: int, limit: float | None, rng: np.random.Generator) -> Array:
    """[samples, U] legal placements, units of most load first; a device that would pass `limit` is avoided."""
    free = np.repeat(units.slots[None], samples, axis=0)
    loads = np.zeros((samples, units.num_devices))
    placed = np.empty((samples, units.num_units), dtype=np.int64)
    every = np.arange(samples)
    for unit in np.argsort(-units.load, kind="stable"):
        kind = units.kind[unit]
        weight = np.repeat(chance[unit][None] + UNLIKELY, samples, axis=0)
        if limit is not None:
            weight = np.where(loads + units.load[unit] > limit, weight * UNLIKELY, weight)
        upto = np.cumsum(np.where(free[:, kind] > 0, weight, 0.0), axis=1)
        device = (upto > (rng.random(samples) * upto[:, -1])[:, None]).argmax(axis=1)
        placed[:, unit] = device
        free[every, kind, device] -= 1
        loads[every, device] += units.load[unit]
    return placed


def align(units: Units, placed: Array, like: Array) -> Array:
    """[n, U] each placement with its devices renamed, where they have equal slots, to be most like `like` [U]."""
    from scipy.optimize import linear_sum_assignment

    if len(placed) == 0:
        return placed
    same_slots = (units.slots[:, :, None] == units.slots[:, None]).all(axis=0)
    weight = units.load + 1.0
    target = units.one_hot(like)
    renamed = np.empty_like(placed)
    for index, device in enumerate(placed):
        overlap = (units.one_hot(device) * weight[:, None]).T @ target
        old, new = linear_sum_assignment(np.where(same_slots, overlap, -weight.sum()), maximize=True)
        renamed[index] = new[np.argsort(old)][device]
    return renamed


def frequencies(units: Units, placed: Array) -> Array:
    """[U, G] share of the placements [n, U] that have a unit on a device."""
    return np.asarray((placed[:, :, None] == np.arange(units.num_devices)).mean(axis=0))


def entropy(chance: Array) -> float:
    """Nats of the least certain unit."""
    return float((-chance * np.log(np.maximum(chance, 1e-300))).sum(axis=1).max(initial=0.0))
