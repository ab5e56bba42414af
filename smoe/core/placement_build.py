"""Placements made from groups of experts, with copies added, and with devices renamed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from smoe.core.errors import PlacementError
from smoe.core.placement import Array, Placement, RoutingTables


def even_slots(num_experts: int, num_devices: int) -> tuple[int, ...]:
    """Experts a device, as even as they can be: the first devices have one more where it does not come out.

    Raises PlacementError for fewer experts than devices.
    """
    if not 1 <= num_devices <= num_experts:
        raise PlacementError(f"devices: {num_devices} (1 to the {num_experts} experts of a layer)")
    whole, rest = divmod(num_experts, num_devices)
    return tuple(whole + (device < rest) for device in range(num_devices))


def contiguous(*, fingerprint: str, num_experts: int, layers: Sequence[int], num_devices: int) -> Placement:
    """The vanilla placement: experts in order of their ids. Raises PlacementError."""
    experts = np.tile(np.arange(num_experts, dtype=np.int32), (len(layers), 1))
    placement = Placement(
        fingerprint=fingerprint,
        num_experts=num_experts,
        layers=tuple(layers),
        slots_of_device=even_slots(num_experts, num_devices),
        slot2expert=experts,
    )
    placement.validate()
    return placement


def from_expert_device(
    expert_device: Array,
    slots_of_device: Sequence[int],
    *,
    fingerprint: str,
    layers: Sequence[int],
    tables: RoutingTables | None = None,
) -> Placement:
    """From groups `expert_device` [L, E]: a device's experts in ascending order. Raises PlacementError."""
    num_layers, num_experts = expert_device.shape
    if num_layers != len(layers):
        raise PlacementError(f"placement: expert_device: {num_layers} layers (expected {len(layers)})")
    num_devices = len(slots_of_device)
    for row, layer in enumerate(layers):
        outside = np.flatnonzero((expert_device[row] < 0) | (expert_device[row] >= num_devices))
        if len(outside):
            expert = int(outside[0])
            at = f"layer {layer}: expert {expert}: device {expert_device[row, expert]}"
            raise PlacementError(f"placement: {at} (0 to {num_devices - 1})")
        counts = np.bincount(expert_device[row], minlength=num_devices).tolist()
        if counts != list(slots_of_device):
            limit = f"slots_of_device = {list(slots_of_device)}"
            raise PlacementError(f"placement: layer {layer}: {counts} experts on the devices ({limit})")
    placement = Placement(
        fingerprint=fingerprint,
        num_experts=num_experts,
        layers=tuple(layers),
        slots_of_device=tuple(int(n) for n in slots_of_device),
        slot2expert=np.argsort(expert_device, axis=1, kind="stable").astype(np.int32),
        tables=tables,
    )
    placement.validate()
    return placement


def with_replicas(placement: Placement, copies: Sequence[Sequence[Sequence[int]]]) -> Placement:
    """`copies[l][g]` are experts that device g holds besides its own, as many in every layer; they come last.

    Raises PlacementError, also for a copy of what the device has.
    """
    extra = tuple(len(experts) for experts in copies[0]) if copies else ()
    if len(copies) != len(placement.layers) or len(extra) != placement.num_devices:
        shape = f"{len(placement.layers)} layers of {placement.num_devices} devices"
        raise PlacementError(f"placement: copies: {len(copies)} layers of {len(extra)} devices (expected {shape})")
    starts = np.concatenate([[0], np.cumsum(placement.slots_of_device)])
    rows = []
    for row, layer in enumerate(placement.layers):
        counts = tuple(len(experts) for experts in copies[row])
        if counts != extra:
            limit = f"as in the first layer: {list(extra)}"
            raise PlacementError(f"placement: layer {layer}: {list(counts)} copies on the devices ({limit})")
        parts = [
            part
            for device in range(placement.num_devices)
            for part in (placement.slot2expert[row, starts[device] : starts[device + 1]], copies[row][device])
        ]
        rows.append(np.concatenate(parts).astype(np.int32))
    slots = tuple(own + more for own, more in zip(placement.slots_of_device, extra, strict=True))
    placement = replace(placement, slots_of_device=slots, slot2expert=np.stack(rows))
    placement.validate()
    return placement


def relabel_devices(placement: Placement, new_device: Array) -> Placement:
    """Device g of layer l becomes `new_device[l, g]` [L, G], in the slots and in the tables.

    Devices that trade places must have as many slots. Raises PlacementError.
    """
    num_layers, num_devices = len(placement.layers), placement.num_devices
    if new_device.shape != (num_layers, num_devices):
        shape = [num_layers, num_devices]
        raise PlacementError(f"placement: new_device: shape {list(new_device.shape)} (expected {shape})")
    slots = np.asarray(placement.slots_of_device)
    starts = np.concatenate([[0], np.cumsum(slots)])
    slot2expert = np.empty_like(placement.slot2expert)
    for row, layer in enumerate(placement.layers):
        new = new_device[row]
        if sorted(new.tolist()) != list(range(num_devices)) or (slots[new] != slots).any():
            limit = f"a permutation of the devices that keeps slots_of_device = {slots.tolist()}"
            raise PlacementError(f"placement: layer {layer}: new_device: {new.tolist()} ({limit})")
        for old in range(num_devices):
            own = placement.slot2expert[row, starts[old] : starts[old + 1]]
            slot2expert[row, starts[new[old]] : starts[new[old] + 1]] = own
    tables = placement.tables
    if tables is not None:
        tables = _relabel_tables(tables, new_device.astype(np.int16))
    return replace(placement, slot2expert=slot2expert, tables=tables)


def _relabel_tables(tables: RoutingTables, new_device: Array) -> RoutingTables:
    num_layers, num_devices = new_device.shape
    # The index after the last device, "no such layer", stays what it is.
    index = np.hstack([new_device, np.full((num_layers, 1), num_devices, dtype=np.int16)])
    plain = np.arange(num_devices + 1)
    device, confidence = np.empty_like(tables.chain_device), np.empty_like(tables.chain_confidence)
    for row in range(num_layers):
        two_before, one_before = (index[row - back] if row >= back else plain for back in (2, 1))
        at = np.ix_(two_before, one_before)
        device[row][at] = new_device[row][tables.chain_device[row]]
        confidence[row][at] = tables.chain_confidence[row]
    return RoutingTables(
        token_device=np.take_along_axis(new_device, tables.token_device, axis=1),
        token_confidence=tables.token_confidence,
        token_second=np.take_along_axis(new_device, tables.token_second, axis=1),
        chain_device=device,
        chain_confidence=confidence,
    )
