"""A trace under a placement: which devices every token needs in every layer.

Axes: L layers, T tokens, E experts, G devices.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smoe.clustering.chain import History, history_table
from smoe.clustering.local import held_by, local_counts, majority
from smoe.core.route_trace import RouteTrace

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Journey:
    """`local` [L, T, G] u8: activations that each device could compute. `device` [L+2, T] i16: where a token was, two
    rows of G (no such layer) first."""

    local: Array
    device: Array

    def before(self, layer: int) -> tuple[Array, Array]:
        """[T] each: the devices two layers and one layer before."""
        return self.device[layer], self.device[layer + 1]

    def share_at(self, layer: int, at: Array, top_k: int) -> Array:
        """[T] f64: the share of a token's activations on device `at`."""
        return np.asarray(self.local[layer, np.arange(len(at)), at] / top_k)


def follow(trace: RouteTrace, on_device: Array) -> Journey:
    layers, _, num_devices = on_device.shape
    local = np.stack([local_counts(trace.expert_ids[i], on_device[i]) for i in range(layers)])
    nowhere = np.full((2, trace.num_tokens), num_devices, dtype=np.int16)
    return Journey(local=local, device=np.concatenate([nowhere, np.stack([majority(each) for each in local])]))


def histories(journey: Journey, top_k: int) -> list[History]:
    """Table A of every layer as it would be without T."""
    return [history_table(local, *journey.before(i), top_k) for i, local in enumerate(journey.local)]


def contiguous(num_layers: int, slots_of_device: tuple[int, ...]) -> Array:
    """[L, E, G] bool: experts in order, as they are without grouping."""
    device = np.repeat(np.arange(len(slots_of_device)), slots_of_device)
    return np.broadcast_to(held_by(device, len(slots_of_device)), (num_layers, len(device), len(slots_of_device)))
