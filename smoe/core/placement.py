"""Placement: which device holds which experts, and the tables that tell where a token should go.

Axes: L MoE layers by index, E experts, G devices, P slots over all devices, V token ids.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smoe.core.errors import PlacementError

Array = npt.NDArray[Any]

SCHEMA = "smoe.placement/1"


TABLES: dict[str, type[np.generic]] = {
    "token_device": np.int16,
    "token_confidence": np.float16,
    "token_second": np.int16,
    "chain_device": np.int16,
    "chain_confidence": np.float16,
}
_MAX_DEVICES = int(np.iinfo(np.int16).max)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutingTables:
    """Where tokens should go, by what is known before the router runs (spec: Speculative MoE, tables T and A).

    token_device [L, V] i16, token_confidence [L, V] f16   table T, for the vocabulary or its first V ids, those above
        going by table A; confidence is the expected share of the token's activations on that device, in [0, 1]
    token_second [L, V] i16                                 the second best device: where a row spills to; another
        than token_device, unless there is one device only
    chain_device [L, G+1, G+1] i16, chain_confidence [L, G+1, G+1] f16   table A, indexed by the token's device two
        layers before and one layer before; index G stands for "no such layer" (the first two layers). Its confidence
        is what T's has to exceed for T to be the better choice after that history

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

    def validate(self, name: str, layers: tuple[int, ...], num_devices: int) -> None:
        """Raises PlacementError naming `name`, the first offending layer and position, and its value."""
        first = self.token_device
        vocab = first.shape[1] if first.ndim == 2 else 0
        chain = (len(layers), num_devices + 1, num_devices + 1)
        for field, dtype in TABLES.items():
            shape = chain if field.startswith("chain") else (len(layers), vocab)
            array = getattr(self, field)
            _check_array(name, field, array, dtype, shape)
            if dtype is np.int16:
                wrong, limit = (array < 0) | (array >= num_devices), f"a device, 0 to {num_devices - 1}"
            else:
                wrong, limit = ~((array >= 0) & (array <= 1)), "a share, 0 to 1"
            _check(name, field, layers, array, wrong, limit)
        if num_devices > 1:
            same = self.token_second == first
            _check(name, "token_second", layers, self.token_second, same, "another than token_device")


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

    def validate(self, name: str = "placement") -> None:
        """Raises PlacementError naming `name`, the first offending layer and position, its value and the limit."""
        if self.num_experts < 1:
            raise PlacementError(f"{name}: num_experts: {self.num_experts} (at least 1)")
        layers, slots = self.layers, self.slots_of_device
        if not layers or layers[0] < 0 or any(b <= a for a, b in itertools.pairwise(layers)):
            raise PlacementError(f"{name}: layers: {list(layers)} (one or more, ascending from 0)")
        if not 1 <= len(slots) <= _MAX_DEVICES:
            raise PlacementError(f"{name}: slots_of_device: {len(slots)} devices (1 to {_MAX_DEVICES})")
        for device, count in enumerate(slots):
            if not 1 <= count <= self.num_experts:
                limit = f"1 to the {self.num_experts} experts, as none is twice on a device"
                raise PlacementError(f"{name}: slots_of_device[{device}]: {count} ({limit})")
        if sum(slots) < self.num_experts:
            raise PlacementError(
                f"{name}: slots_of_device: {sum(slots)} slots (at least one for each of {self.num_experts} experts)"
            )
        _check_array(name, "slot2expert", self.slot2expert, np.int32, (len(layers), sum(slots)))
        self._check_slots(name)
        if self.tables is not None:
            self.tables.validate(name, layers, len(slots))

    def _check_slots(self, name: str) -> None:
        slot2expert, experts = self.slot2expert, self.num_experts
        wrong = (slot2expert < 0) | (slot2expert >= experts)
        _check(name, "slot2expert", self.layers, slot2expert, wrong, f"an expert, 0 to {experts - 1}")
        for row, layer in enumerate(self.layers):
            missing = np.setdiff1d(np.arange(experts), slot2expert[row])
            if len(missing):
                raise PlacementError(f"{name}: layer {layer}: expert {missing[0]} has no slot (every expert has one)")
            held = slot2expert[row].astype(np.int64) + self.slot2device.astype(np.int64) * experts
            values, counts = np.unique(held, return_counts=True)
            if counts.max() > 1:
                device, expert = divmod(int(values[counts.argmax()]), experts)
                slots = np.flatnonzero(held == values[counts.argmax()]).tolist()
                where = f"expert {expert} is in slots {slots} of device {device}"
                raise PlacementError(f"{name}: layer {layer}: {where} (at most one a device)")


def check_fits(
    placement: Placement,
    *,
    num_experts: int,
    layers: Sequence[int],
    fingerprint: str | None = None,
    vocab_size: int | None = None,
    name: str = "placement",
) -> None:
    """That a placement is of the model with these facts; what is None is not compared. Raises PlacementError."""
    if fingerprint is not None and placement.fingerprint != fingerprint:
        raise PlacementError(f"{name}: fingerprint: {placement.fingerprint!r} (the model's is {fingerprint!r})")
    if placement.num_experts != num_experts:
        raise PlacementError(f"{name}: num_experts: {placement.num_experts} (the model's layers have {num_experts})")
    if placement.layers != tuple(layers):
        raise PlacementError(f"{name}: layers: {list(placement.layers)} (the model's MoE layers are {list(layers)})")
    tables = placement.tables
    if tables is not None and vocab_size is not None and tables.vocab_size > vocab_size:
        raise PlacementError(
            f"{name}: tables of {tables.vocab_size} token ids (the model's vocabulary has {vocab_size})"
        )


def _check_array(name: str, field: str, array: Array, dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    if array.dtype != dtype:
        raise PlacementError(f"{name}: {field}: dtype {array.dtype} (expected {np.dtype(dtype)})")
    if array.shape != shape:
        raise PlacementError(f"{name}: {field}: shape {list(array.shape)} (expected {list(shape)})")


def _check(name: str, field: str, layers: tuple[int, ...], array: Array, wrong: Array, limit: str) -> None:
    """PlacementError at the first place where `wrong`; the leading axis goes over the layers."""
    if wrong.any():
        row, *at = (int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
        value = array[(row, *at)].item()
        raise PlacementError(f"{name}: layer {layers[row]}: {field}{at}: {value} ({limit})")
