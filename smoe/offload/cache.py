"""Residency: which expert holds which slot. Pure bookkeeping, torch-free, the same object live and in simulation.

A slot is in exactly one state:

    free --reserve--> in flight --commit--> resident (pinned once) --unpin--> resident, evictable
      ^                   |                                                        |
      |                   | fail                                                   | evicted by a reserve:
      +-------------------+                                                        v in flight for the next expert

Every layer can always hold `floor` slots: free slots that other layers have not yet taken up to their floor are not
handed out, and a layer at its floor loses a slot only to itself. What lies above the floors is shared.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from smoe.offload.policies.eviction import Eviction


class View(NamedTuple):
    """A right to use a slot's contents while the slot's generation is `generation`; picklable."""

    layer: int
    expert: int
    slot: int
    generation: int


class Residency:
    """One thread calls. Methods that hand out a View pin its slot; each pin is given back by one `unpin`."""

    def __init__(self, num_slots: int, layers: Sequence[int], eviction: Eviction, *, floor: int) -> None:
        """`layers` are the MoE layers; `floor` >= 1 slots of each are safe from the other layers."""
        if not 1 <= floor <= num_slots // len(layers):
            raise ValueError(f"floor: {floor} (1 up to {num_slots} slots / {len(layers)} layers)")
        self.num_slots, self.floor = num_slots, floor
        self.hits = self.cold_misses = self.collision_misses = self.evictions = self.peak_used = 0
        self._eviction = eviction
        self._slot_of: dict[int, dict[int, int]] = {layer: {} for layer in layers}
        self._in_flight: dict[int, tuple[int, int]] = {}
        self._owner: list[tuple[int, int] | None] = [None] * num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._pins = [0] * num_slots
        self._generation = [0] * num_slots
        self._held = dict.fromkeys(layers, 0)
        self._owed = floor * len(layers)
        self._seen: dict[int, set[int]] = {layer: set() for layer in layers}

    def try_hit_all(self, layer: int, experts: Sequence[int]) -> bool:
        """Whether distinct `experts` are all resident; then they are counted as hits, else nothing changes.

        Pins nothing: their slots are theirs until the next call of any method.
        """
        if not self._slot_of[layer].keys() >= set(experts):
            return False
        self.hits += len(experts)
        self._eviction.touch(layer, experts)
        return True

    def hit(self, layer: int, experts: Sequence[int]) -> list[View]:
        """Pinned views of those of distinct `experts` that are resident, in the order given, counted as hits."""
        slot_of = self._slot_of[layer]
        found = [expert for expert in experts if expert in slot_of]
        for expert in found:
            self._pins[slot_of[expert]] += 1
        self.hits += len(found)
        if found:
            self._eviction.touch(layer, found)
        return [View(layer, expert, slot_of[expert], self._generation[slot_of[expert]]) for expert in found]

    def try_reserve(self, layer: int, expert: int) -> View | None:
        """A slot in flight for an expert that holds none, counted as a miss; None while no slot can be had.

        Evicts when no free slot is left for this layer. Views of the slot's former expert are stale from here on.
        """
        slot = self._take_slot(layer)
        if slot is None:
            return None
        seen = self._seen[layer]
        if expert in seen:
            self.collision_misses += 1
        else:
            self.cold_misses += 1
            seen.add(expert)
        self._owner[slot] = self._in_flight[slot] = (layer, expert)
        self._generation[slot] += 1
        self._hold(layer, 1)
        self._eviction.admit(layer, expert)
        self.peak_used = max(self.peak_used, self.num_slots - len(self._free))
        return View(layer, expert, slot, self._generation[slot])

    def commit(self, view: View) -> None:
        """The bytes of an in-flight slot have arrived: resident, with one pin."""
        self.check(view)
        del self._in_flight[view.slot]
        self._slot_of[view.layer][view.expert] = view.slot
        self._pins[view.slot] += 1

    def fail(self, view: View) -> None:
        """The transfer of an in-flight slot failed: the slot is free, and its contents are nobody's."""
        self.check(view)
        del self._in_flight[view.slot]
        self._eviction.forget(view.layer, view.expert)
        self._release(view.slot)
        self._free.append(view.slot)

    def unpin(self, view: View) -> None:
        self.check(view)
        if self._pins[view.slot] < 1:
            raise RuntimeError(f"slot {view.slot}: unpinned more often than pinned")
        self._pins[view.slot] -= 1

    def check(self, view: View) -> None:
        """Raises RuntimeError when the slot has been given to another expert since the view was made."""
        if self._generation[view.slot] != view.generation or self._owner[view.slot] != view[:2]:
            raise RuntimeError(
                f"slot {view.slot}: view of layer {view.layer} expert {view.expert} generation {view.generation}, "
                f"but the slot is at generation {self._generation[view.slot]}"
            )

    def resident(self, layer: int) -> dict[int, int]:
        """expert -> slot of `layer`; a copy."""
        return dict(self._slot_of[layer])

    def check_integrity(self) -> None:
        """Raises RuntimeError unless free, in-flight and resident slots partition all slots, idle ones unpinned."""
        resident = {slot: (layer, e) for layer, held in self._slot_of.items() for e, slot in held.items()}
        states = Counter([*self._free, *self._in_flight, *resident])
        problems = []
        if sorted(states.elements()) != list(range(self.num_slots)):
            problems.append("free, in-flight and resident slots are not a partition")
        owners = {slot: owner for slot, owner in enumerate(self._owner) if owner is not None}
        if owners != resident | self._in_flight or len(set(owners.values())) != len(owners):
            problems.append("owners differ from residents and transfers")
        held = Counter(layer for layer, _ in owners.values())
        if any(held[layer] != count for layer, count in self._held.items()):
            problems.append("slots held by layers are miscounted")
        owed = sum(max(0, self.floor - count) for count in self._held.values())
        if owed != self._owed or owed > len(self._free):
            problems.append("floors of layers are not covered by free slots")
        if any(pins < 0 or (pins and slot not in resident) for slot, pins in enumerate(self._pins)):
            problems.append("a pin on a slot that is not resident")
        if problems:
            raise RuntimeError(f"expert residency: {'; '.join(problems)}")

    def check_idle(self) -> None:
        """check_integrity, and no pin and no transfer left over from a finished forward."""
        self.check_integrity()
        if any(self._pins) or self._in_flight:
            raise RuntimeError(f"expert residency: {sum(self._pins)} pins, {len(self._in_flight)} transfers left over")

    def _take_slot(self, layer: int) -> int | None:
        owed_to_others = self._owed - max(0, self.floor - self._held[layer])
        if len(self._free) > owed_to_others:
            return self._free.pop()
        may_lose = [other for other, held in self._held.items() if other == layer or held > self.floor]
        victim = self._eviction.victim(may_lose, self._evictable)
        if victim is None:
            return None
        slot = self._slot_of[victim[0]].pop(victim[1])
        self._eviction.forget(*victim)
        self._release(slot)
        self.evictions += 1
        return slot

    def _evictable(self, layer: int, expert: int) -> bool:
        slot = self._slot_of[layer].get(expert)
        return slot is not None and not self._pins[slot]

    def _release(self, slot: int) -> None:
        owner = self._owner[slot]
        assert owner is not None
        self._owner[slot] = None
        self._generation[slot] += 1
        self._hold(owner[0], -1)

    def _hold(self, layer: int, change: int) -> None:
        before = self._held[layer]
        self._held[layer] = before + change
        self._owed += max(0, self.floor - before - change) - max(0, self.floor - before)
