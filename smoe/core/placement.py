"""Placement: which device holds which experts, and the tables that tell where a token should go.

Axes: L MoE layers by index, E experts, G devices, P slots over all devices, V token ids.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SCHEMA = "smoe.placement/1"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutingTables:
    """Where tokens should go, by what is known before the router runs (spec: Speculative MoE, tables T and A).

    token_device [L, V] i16, token_confidence [L, V] f16   table T, for the whole vocabulary; confidence is the expected
        share of the token's activations on that device, in [0, 1]
    token_second [L, V] i16                                 the second best device: where a row spills to
    chain_device [L, G+1, G+1] i16, chain_confidence [L, G+1, G+1] f16   table A, indexed by the token's device two
        layers before and one layer before; index G stands for "no such layer" (the first two layers)

    The lookup: T where its confidence is higher, else A.
    """

    token_device: Array
    token_confidence: Array
    token_second: Array
    chain_device: Array
    chain_confidence: Array

    @property
    def vocab_size(self) -> int:
        return int(self.token_device.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """`slot2expert[l, p]` [L, P] i32 is the expert in slot p; slots are dealt to devices in order, `slots_of_device`
    [G] each (they may be uneven). Every expert has a slot or more (replicas) in every layer, at most one a device.

    `layers[l]` is the decoder layer of index l. `tables` is None when only experts were placed.
    """

    fingerprint: str
    num_experts: int
    layers: tuple[int, ...]
    slots_of_device: tuple[int, ...]
    slot2expert: Array
    tables: RoutingTables | None = None

    @property
    def num_devices(self) -> int:
        return len(self.slots_of_device)

    @property
    def slot2device(self) -> Array:
        """[P] i16."""
        return np.repeat(np.arange(self.num_devices, dtype=np.int16), self.slots_of_device)

    @property
    def expert2device(self) -> Array:
        """[L, E] i16: the first device that holds an expert, which is the only one without replicas."""
        found = np.full((len(self.layers), self.num_experts), -1, dtype=np.int16)
        device_of_slot = self.slot2device
        for slot in range(self.slot2expert.shape[1] - 1, -1, -1):
            found[np.arange(len(self.layers)), self.slot2expert[:, slot]] = device_of_slot[slot]
        return found

    @property
    def on_device(self) -> Array:
        """[L, E, G] bool: whether an expert has a slot on a device."""
        held = np.zeros((len(self.layers), self.num_experts, self.num_devices), dtype=bool)
        layer = np.arange(len(self.layers))[:, None]
        held[layer, self.slot2expert, self.slot2device[None, :]] = True
        return held
