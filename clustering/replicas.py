"""Copies of hot experts in spare slots of one layer: for balance first, then to keep activations at home.

Who computes what is as `placement_maps.computing_device` says. So a copy takes load from other devices if the tokens
are where the copy is, or if their senders are dealt to it; nothing splits what a device asks of itself.

Axes: E experts, G devices, C candidates (an expert and a device with room that lacks it).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smoe.core.errors import ConfigError
from smoe.core.placement_maps import computing_device

Array = npt.NDArray[Any]

_POWERS = (4, 8)
_BROAD = 4096
"""Experts times devices up to which every copy is tried each time: beyond, it would take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replicas:
    """`copies[g]`: the experts that device g holds besides its own, in the order chosen, as
    `placement_build.with_replicas` wants them; `on_device` [E, G] bool with them.

    Load is the busiest device's activations over the mean. `local_*`: the share of activations on a device that holds
    their expert."""

    copies: tuple[tuple[int, ...], ...]
    on_device: Array
    load_before: float
    load_after: float
    local_before: float
    local_after: float


def choose_replicas(
    on_device: Array, activations: Array, extra_slots: Sequence[int], *, allowed_load: float = 1.05
) -> Replicas:
    """Fills every spare slot. `on_device` [E, G] bool: who holds what now. `activations` [E, G]: those of an expert by
    the device where its token is. `extra_slots` [G].

    While no copy brings the load to `allowed_load`, the one that evens out the devices most is taken; then, of the
    copies that keep it there, the one that keeps most activations at home. Of several such fillings the best balanced
    one is returned, then the one with most at home. The last slots may have no harmless copy left; the least harmful
    fills them.

    Raises ConfigError for slots that no expert can fill, values that are not counts and a limit below 1.
    """
    held = on_device.astype(bool)
    _check(held, activations, extra_slots, allowed_load)
    before = _measure(held, activations)
    broad = (False, True) if held.size <= _BROAD else (False,)
    best: tuple[tuple[float, float], list[list[int]], Array] | None = None
    for power, every in itertools.product(_POWERS, broad):
        copies, filled = _fill(held, activations, extra_slots, allowed_load, power, every)
        load, local = _measure(filled, activations)
        worth = (max(load, allowed_load), -local)
        if best is None or worth < best[0]:
            best = worth, copies, filled
    assert best is not None
    _, copies, filled = best
    after = _measure(filled, activations)
    return Replicas(
        copies=tuple(tuple(experts) for experts in copies),
        on_device=filled,
        load_before=before[0],
        load_after=after[0],
        local_before=before[1],
        local_after=after[1],
    )


def device_load(on_device: Array, activations: Array) -> Array:
    """[G] activations that each device computes."""
    return np.asarray(_by_device(computing_device(on_device), activations).sum(axis=0))


def _by_device(device: Array, counts: Array) -> Array:
    """[C, G] f64: `counts` [C, G] by sender, summed by the `device` [C, G] that computes them."""
    rows, devices = device.shape
    at = np.arange(rows)[:, None] * devices + device
    return np.bincount(at.ravel(), weights=counts.ravel(), minlength=rows * devices).reshape(rows, devices)


def _fill(
    held: Array, activations: Array, extra_slots: Sequence[int], allowed_load: float, power: int, every: bool
) -> tuple[list[list[int]], Array]:
    """The copies of each device, and who holds what with them."""
    held = held.copy()
    room = np.asarray(extra_slots, dtype=np.int64).copy()
    copies: list[list[int]] = [[] for _ in extra_slots]
    while room.any():
        expert, device = _next_copy(held, activations, room, allowed_load, power, every)
        held[expert, device] = True
        copies[device].append(expert)
        room[device] -= 1
    return copies, held


def _next_copy(
    held: Array, activations: Array, room: Array, allowed_load: float, power: int, every: bool
) -> tuple[int, int]:
    """The best (expert, device) with room for it, ties to the lowest ids. How even devices are is the sum of their
    loads to a `power`: the busiest alone would say nothing while several are as busy. `every` also looks at experts
    that the busiest device does not compute."""
    now = _by_device(computing_device(held), activations)
    load = now.sum(axis=0)
    limit = allowed_load * load.mean()
    experts, devices = np.nonzero(~held & (room > 0))
    if load.max() > limit and not every:
        asked = now[experts, int(load.argmax())] > 0
        if asked.any():
            experts, devices = experts[asked], devices[asked]
    then = held[experts]
    then[np.arange(len(experts)), devices] = True
    loads = load - now[experts] + _by_device(computing_device(then), activations[experts])
    kept_home = activations[experts, devices]
    uneven = ((loads / max(load.mean(), 1e-300)) ** power).sum(axis=1)
    harmless = np.flatnonzero(loads.max(axis=1) <= limit)
    if len(harmless):
        best = harmless[np.lexsort((uneven[harmless], -kept_home[harmless]))[0]]
    else:
        best = np.lexsort((-kept_home, uneven))[0]
    return int(experts[best]), int(devices[best])


def _measure(held: Array, activations: Array) -> tuple[float, float]:
    """Load and local share; a layer without activations is balanced and has nothing that could be remote."""
    total = float(activations.sum())
    if total == 0:
        return 1.0, 1.0
    load = device_load(held, activations)
    return float(load.max() / load.mean()), float((activations * held).sum() / total)


def _check(held: Array, activations: Array, extra_slots: Sequence[int], allowed_load: float) -> None:
    experts, devices = held.shape
    if activations.shape != held.shape:
        raise ConfigError("activations", list(activations.shape), f"[{experts}, {devices}]")
    wrong = ~((activations >= 0) & np.isfinite(activations))
    if wrong.any():
        expert, device = (int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
        raise ConfigError(f"activations[{expert}, {device}]", activations[expert, device].item(), "a count")
    if not held.any(axis=1).all():
        raise ConfigError("on_device", f"expert {int((~held.any(axis=1)).argmax())} nowhere", "every expert somewhere")
    if len(extra_slots) != devices:
        raise ConfigError("extra_slots", list(extra_slots), f"one number for each of {devices} devices")
    for device, extra in enumerate(extra_slots):
        lacking = int((~held[:, device]).sum())
        if not 0 <= extra <= lacking:
            raise ConfigError(f"extra_slots[{device}]", extra, f"0 to the {lacking} experts that it does not hold")
    if not allowed_load >= 1:
        raise ConfigError("allowed_load", allowed_load, "1 or above: the busiest device over the mean")
