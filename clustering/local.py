"""Where a token's experts are: activations on each device, and the device that has most of them.

Axes: T tokens, k experts a token, E experts, G devices. `held` [E, G] bool tells which devices hold an expert; with
replicas an activation is local on each of them.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def held_by(expert_device: Array, num_devices: int) -> Array:
    """[..., E, G] bool from [..., E] device ids."""
    return np.asarray(np.asarray(expert_device)[..., None] == np.arange(num_devices), dtype=bool)


def local_counts(expert_ids: Array, held: Array) -> Array:
    """[T, G] u8: of a token's k activations, those that each device could compute."""
    counts = np.zeros((len(expert_ids), held.shape[1]), dtype=np.uint8)
    as_counts = held.astype(np.uint8)
    for slot in range(expert_ids.shape[1]):
        counts += as_counts[expert_ids[:, slot]]
    return counts


def majority(local_TG: Array) -> Array:
    """[T] i16: the device of most of a token's experts, ties to the lowest id."""
    return np.asarray(local_TG.argmax(axis=1), dtype=np.int16)


def expert_load(expert_ids: Array, num_experts: int) -> Array:
    """[E] i64 activations."""
    return np.bincount(expert_ids.ravel(), minlength=num_experts)


def device_load(load_E: Array, held: Array) -> Array:
    """[G] f64 activations that each device computes when replicas share evenly."""
    return np.asarray((load_E / held.sum(axis=1)) @ held, dtype=np.float64)


def imbalance(load_G: Array) -> float:
    """The busiest device over the mean; 1 where there is no load."""
    mean = float(np.mean(load_G))
    return float(np.max(load_G)) / mean if mean > 0 else 1.0
