"""What a solver moves: single experts, or a router's whole groups. Two units of one kind may trade places."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array, csr_array

from smoe.clustering.problem import Array, LayerProblem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Units:
    """U units in K kinds. `counts` [R, U] f64 has a unit's activations by row, `load` [U] all of them, `mass` [R] f64.

    Every placement has `slots[kind, device]` [K, G] units of a kind on a device: so experts of a router's group stay
    on the devices their group has, and groups that fit on one device move as a whole. `unit_of_expert` [E].
    """

    counts: csc_array
    mass: Array
    load: Array
    kind: Array
    slots: Array
    unit_of_expert: Array

    @property
    def num_units(self) -> int:
        return len(self.kind)

    @property
    def num_devices(self) -> int:
        return int(self.slots.shape[1])

    def expert_device(self, unit_device: Array) -> Array:
        """[E] i16."""
        return np.asarray(unit_device[self.unit_of_expert], dtype=np.int16)

    def one_hot(self, unit_device: Array) -> Array:
        """[U, G] f64."""
        return np.asarray(unit_device[:, None] == np.arange(self.num_devices), dtype=np.float64)


def units_of(problem: LayerProblem) -> Units:
    """The units of a problem. Groups are laid out largest first: each on the fullest device that still holds it whole,
    or else over the emptiest devices."""
    if problem.expert_group is None:
        experts = np.arange(problem.num_experts)
        return _make(problem, experts, np.zeros_like(experts), np.array([problem.slots_of_device]))
    members = [np.flatnonzero(problem.expert_group == group) for group in np.unique(problem.expert_group)]
    free = list(problem.slots_of_device)
    unit_of_expert = np.empty(problem.num_experts, dtype=np.int64)
    kinds: list[tuple[str, int]] = []
    slots: dict[tuple[str, int], Array] = {}
    for experts in sorted(members, key=lambda experts: (-len(experts), int(experts[0]))):
        size = len(experts)
        fitting = [device for device, room in enumerate(free) if room >= size]
        whole = bool(fitting)
        kind = ("whole", size) if whole else ("part", int(experts[0]))
        of_kind = slots.setdefault(kind, np.zeros(len(free), dtype=np.int64))
        unit_of_expert[experts] = len(kinds) + (0 if whole else np.arange(size))
        kinds += [kind] * (1 if whole else size)
        if whole:
            device = min(fitting, key=lambda device: free[device])
            free[device] -= size
            of_kind[device] += 1
            continue
        for device in sorted(range(len(free)), key=lambda device: -free[device]):
            taken = min(free[device], size - int(of_kind.sum()))
            free[device] -= taken
            of_kind[device] += taken
    names = list(slots)
    kind_index = np.array([names.index(kind) for kind in kinds])
    return _make(problem, unit_of_expert, kind_index, np.array([slots[name] for name in names]))


def _make(problem: LayerProblem, unit_of_expert: Array, kind: Array, slots: Array) -> Units:
    shape = (problem.num_experts, len(kind))
    gather = csr_array((np.ones(len(unit_of_expert)), (np.arange(len(unit_of_expert)), unit_of_expert)), shape=shape)
    counts = csc_array(problem.counts.astype(np.float64) @ gather)
    counts.sort_indices()
    return Units(
        counts=counts,
        mass=problem.mass,
        load=np.asarray(counts.sum(axis=0), dtype=np.float64).ravel(),
        kind=kind,
        slots=slots,
        unit_of_expert=unit_of_expert,
    )


def in_order(units: Units) -> Array:
    """[U] the placement that fills the devices one after the other, with units in the order of their experts."""
    device = np.empty(units.num_units, dtype=np.int64)
    for kind, slots in enumerate(units.slots):
        device[units.kind == kind] = np.repeat(np.arange(units.num_devices), slots)
    return device


def nearest_placement(units: Units, wish: Array) -> Array:
    """[U] a legal placement that keeps `wish` [U, G] (higher is better): the assignment of the greatest sum."""
    from scipy.optimize import linear_sum_assignment

    device = np.empty(units.num_units, dtype=np.int64)
    for kind, slots in enumerate(units.slots):
        members = np.flatnonzero(units.kind == kind)
        device_of_slot = np.repeat(np.arange(units.num_devices), slots)
        chosen, slot = linear_sum_assignment(wish[np.ix_(members, device_of_slot)], maximize=True)
        device[members[chosen]] = device_of_slot[slot]
    return device
