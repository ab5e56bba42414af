"""Slots: which expert holds which, and in what state. Pure bookkeeping, torch-free.

A slot is in exactly one state:

    free --give--> in flight --land--> resident, pinned if asked for --unpin--> resident, evictable
      ^                |                                                              |
      |                | fail                                                         | evict: nobody's, until it is
      +----------------+                                                              v given, freed or put aside
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from smoe.offload.policies.protocols import Key


class View(NamedTuple):
    """A right to use a slot's contents while the slot's generation is `generation`; picklable."""

    layer: int
    expert: int
    slot: int
    generation: int


class Slots:
    """`resident` are layer -> expert -> slot, `in_flight` key -> slot; others only read them. `peak_used` is the most
    ever used at a time."""

    def __init__(self, num_slots: int, max_slots: int, layers: Sequence[int]) -> None:
        """`num_slots` are in use, of `max_slots` that have a number."""
        self.num_slots, self.max_slots = num_slots, max_slots
        self.resident: dict[int, dict[int, int]] = {layer: {} for layer in layers}
        self.in_flight: dict[Key, int] = {}
        self.peak_used = 0
        self._owner: list[Key | None] = [None] * max_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._aside = list(range(max_slots - 1, num_slots - 1, -1))
        self._pins = [0] * max_slots
        self._generation = [0] * max_slots

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_pins(self) -> int:
        return sum(self._pins)

    def holds(self, key: Key) -> bool:
        """Whether `key` is resident or in flight."""
        return key[1] in self.resident[key[0]] or key in self.in_flight

    def view(self, layer: int, expert: int, slot: int) -> View:
        return View(layer, expert, slot, self._generation[slot])

    def check(self, view: View) -> None:
        """Raises RuntimeError when the slot has been given to another expert since the view was made."""
        if self._generation[view.slot] != view.generation or self._owner[view.slot] != view[:2]:
            raise RuntimeError(
                f"slot {view.slot}: view of layer {view.layer} expert {view.expert} generation {view.generation}, "
                f"but the slot is at generation {self._generation[view.slot]}"
            )

    def pin(self, layer: int, experts: Sequence[int]) -> list[View]:
        """Pinned views of those of distinct `experts` that are resident, in the order given."""
        resident = self.resident[layer]
        views = [
            View(layer, expert, resident[expert], self._generation[resident[expert]])
            for expert in experts
            if expert in resident
        ]
        for view in views:
            self._pins[view.slot] += 1
        return views

    def unpin(self, view: View) -> None:
        self.check(view)
        if self._pins[view.slot] < 1:
            raise RuntimeError(f"slot {view.slot}: unpinned more often than pinned")
        self._pins[view.slot] -= 1

    def evictable(self, layer: int, expert: int) -> bool:
        slot = self.resident[layer].get(expert)
        return slot is not None and not self._pins[slot]

    def take_free(self) -> int:
        """A free slot, which is nobody's from here on."""
        return self._free.pop()

    def evict(self, key: Key) -> int:
        """The slot of a resident expert, which is nobody's from here on."""
        slot = self.resident[key[0]].pop(key[1])
        self._lose(slot)
        return slot

    def give(self, slot: int, key: Key) -> View:
        """Nobody's slot is in flight for `key`."""
        self._owner[slot] = key
        self._generation[slot] += 1
        self.in_flight[key] = slot
        used = self.num_slots - len(self._free)
        if used > self.peak_used:
            self.peak_used = used
        return View(*key, slot, self._generation[slot])

    def land(self, view: View, *, pinned: bool) -> None:
        """The bytes of an in-flight slot have arrived: resident."""
        self.check(view)
        del self.in_flight[view[:2]]
        self.resident[view.layer][view.expert] = view.slot
        self._pins[view.slot] += pinned

    def fail(self, view: View) -> None:
        """The bytes of an in-flight slot will not come: it is free."""
        self.check(view)
        del self.in_flight[view[:2]]
        self._lose(view.slot)
        self._free.append(view.slot)

    def free(self, slot: int) -> None:
        """Nobody's slot is free."""
        self._free.append(slot)

    def grow(self) -> None:
        """One more slot is in use, and free."""
        self._free.append(self._aside.pop())
        self.num_slots += 1

    def put_aside(self, slot: int) -> None:
        """Nobody's slot is not in use any more."""
        self._aside.append(slot)
        self.num_slots -= 1

    def restart_peak(self) -> None:
        self.peak_used = self.num_slots - len(self._free)

    def owners(self) -> dict[int, Key]:
        return {slot: owner for slot, owner in enumerate(self._owner) if owner is not None}

    def problems(self) -> list[str]:
        """What does not hold of: free, in-flight and resident slots partition all slots, idle ones unpinned."""
        resident = {slot: (layer, e) for layer, held in self.resident.items() for e, slot in held.items()}
        in_flight = {slot: key for key, slot in self.in_flight.items()}
        states, owners, found = Counter([*self._free, *self._aside, *in_flight, *resident]), self.owners(), []
        if sorted(states.elements()) != list(range(self.max_slots)):
            found.append("free, in-flight and resident slots are not a partition")
        if len(self._aside) != self.max_slots - self.num_slots:
            found.append("slots out of use are miscounted")
        if owners != resident | in_flight or len(set(owners.values())) != len(owners):
            found.append("owners differ from residents and transfers")
        if any(pins < 0 or (pins and slot not in resident) for slot, pins in enumerate(self._pins)):
            found.append("a pin on a slot that is not resident")
        return found

    def _lose(self, slot: int) -> None:
        self._owner[slot] = None
        self._generation[slot] += 1
