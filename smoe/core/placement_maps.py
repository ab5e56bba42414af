"""A placement read in other directions, and what changes from one to another."""

from dataclasses import dataclass

import numpy as np

from smoe.core.errors import PlacementError
from smoe.core.placement import Array, Placement


def device2experts(placement: Placement) -> list[list[list[int]]]:
    """By layer and device, the experts in the order of the slots."""
    cuts = np.cumsum(placement.slots_of_device)[:-1]
    return [[part.tolist() for part in np.split(row, cuts)] for row in placement.slot2expert]


def expert2slots(placement: Placement) -> tuple[Array, Array]:
    """EPLB's maps: `logical_to_physical` [L, E, R] i32, the slots of an expert in ascending order and then -1, for R
    the most copies of any expert; `logical_count` [L, E] i32, how many there are."""
    num_layers, num_slots = placement.slot2expert.shape
    layer, slot = np.divmod(np.arange(num_layers * num_slots), num_slots)
    expert = placement.slot2expert.ravel()
    count = np.zeros((num_layers, placement.num_experts), dtype=np.int32)
    np.add.at(count, (layer, expert), 1)
    slots = np.full((num_layers, placement.num_experts, int(count.max())), -1, dtype=np.int32)
    order = np.lexsort((slot, expert, layer))
    layer, expert, slot = layer[order], expert[order], slot[order]
    first = np.concatenate([[0], np.cumsum(count.ravel())])[:-1].reshape(count.shape)
    slots[layer, expert, np.arange(len(slot)) - first[layer, expert]] = slot
    return slots, count


def computing_device(on_device: Array) -> Array:
    """[..., E, G] i16 from a placement's `on_device` [..., E, G] bool: the device that computes an expert for the rows
    on device g. That is g itself where it holds the expert; else senders are dealt to the holders in turn, sender g to
    the one that comes g modulo their number after the first. Every expert must be held somewhere."""
    senders = np.arange(on_device.shape[-1])
    holders = np.argsort(~on_device, axis=-1, kind="stable")
    dealt = np.take_along_axis(holders, senders % on_device.sum(axis=-1, keepdims=True), axis=-1)
    return np.where(on_device, senders, dealt).astype(np.int16)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChange:
    """Of one decoder layer: how many (expert, device) holdings are new, and how many are given up."""

    layer: int
    fetched: int
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementDiff:
    """`fetched_by_device` [G]: experts that each device of the later placement has to load, over all layers.

    `bytes_moved` is None where the size of an expert was not given.
    """

    layers: tuple[LayerChange, ...]
    fetched_by_device: tuple[int, ...]
    holdings: int
    bytes_moved: int | None

    @property
    def fetched(self) -> int:
        return sum(layer.fetched for layer in self.layers)


def diff(before: Placement, after: Placement, *, expert_bytes: int | None = None) -> PlacementDiff:
    """What it takes to get from one placement to another of the same model; the number of devices may differ.

    Raises PlacementError.
    """
    for field in ("fingerprint", "num_experts", "layers"):
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            raise PlacementError(f"{field}: {new!r} (the other placement has {old!r})")
    devices = max(before.num_devices, after.num_devices)
    held = [
        np.pad(placement.on_device, ((0, 0), (0, 0), (0, devices - placement.num_devices)))
        for placement in (before, after)
    ]
    fetched, dropped = held[1] & ~held[0], held[0] & ~held[1]
    changes = tuple(
        LayerChange(layer=layer, fetched=int(new.sum()), dropped=int(old.sum()))
        for layer, new, old in zip(after.layers, fetched, dropped, strict=True)
    )
    return PlacementDiff(
        layers=changes,
        fetched_by_device=tuple(fetched.sum(axis=(0, 1))[: after.num_devices].tolist()),
        holdings=int(held[1].sum()),
        bytes_moved=None if expert_bytes is None else int(fetched.sum()) * expert_bytes,
    )
