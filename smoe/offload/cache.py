"""Residency: which experts are where, and what is under way. Pure bookkeeping, torch-free, the same object live and in
simulation."""

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet

from smoe.offload.policies.protocols import Eviction, Key, Reason, Routing
from smoe.offload.slots import Slots, View
from smoe.offload.uses import Uses
from smoe.offload.victims import Victims


class Residency:
    """One thread calls. Each pin (of `pin`, and of the `commit` of what a pass waits for) is given back by `unpin`."""

    def __init__(
        self, num_slots: int, layers: Sequence[int], eviction: Eviction, *, floor: int, max_slots: int | None = None
    ) -> None:
        """`layers` are the MoE layers; `floor` >= 1 slots of each are safe from the other layers. Slots are numbered
        below `max_slots` (default: `num_slots`), up to which `resize` can go."""
        self._slots = Slots(num_slots, num_slots if max_slots is None else max_slots, layers)
        self.uses, self._eviction = Uses(layers), eviction
        self._victims = Victims(self._slots, self.uses, layers, eviction, floor=floor)
        self._background: set[Key] = set()  # in flight without a pass that waits
        slots = self._slots
        self.holds, self.pin, self.unpin, self.check = slots.holds, slots.pin, slots.unpin, slots.check
        """As Slots has them: a call each, several times an expert, would be felt."""

    @property
    def num_slots(self) -> int:
        return self._slots.num_slots

    @property
    def max_slots(self) -> int:
        return self._slots.max_slots

    @property
    def peak_used(self) -> int:
        """The most slots ever used at a time; since the last `resize`."""
        return self._slots.peak_used

    @property
    def background_in_flight(self) -> int:
        """Transfers under way that no pass waits for."""
        return len(self._background)

    @property
    def background_keys(self) -> AbstractSet[Key]:
        """What is under way without a pass that waits for it: a view that changes."""
        return self._background

    def begin_epoch(self) -> None:
        self.uses.epoch += 1
        self._eviction.begin_epoch()

    def begin_layer(self, routing: Routing) -> None:
        """The pass of `routing.layer` starts."""
        self._eviction.begin_layer(routing.layer)
        self._eviction.demand(routing)

    def try_hit_all(self, layer: int, experts: Sequence[int]) -> bool:
        """Whether distinct `experts` are all resident; then they are counted as hits, else nothing changes.

        Pins nothing: their slots are theirs until the next call of any method.
        """
        if not self._slots.resident[layer].keys() >= set(experts):
            return False
        self.uses.hit(layer, experts)
        self._eviction.touch(layer, experts)
        return True

    def ask(self, layer: int, experts: Sequence[int]) -> list[int]:
        """Counts what a pass asks for (distinct) and touches the hits and the late, in the order given. Returns the
        misses.

        Changes no slot. A late expert has one: its transfer is under way. It is used as a hit is, however it came.
        """
        resident, in_flight = self._slots.resident[layer], self._slots.in_flight
        found: list[int] = []
        used: list[int] = []
        missing: list[int] = []
        for expert in experts:
            if expert in resident:
                found.append(expert)
                used.append(expert)
            elif (layer, expert) in in_flight:
                self.uses.late((layer, expert))
                used.append(expert)
            else:
                missing.append(expert)
        if missing:
            self.uses.missed(layer, missing)
        if found:
            self.uses.hit(layer, found)
        if used:
            self._eviction.touch(layer, used)
        return missing

    def claim(self, layer: int, experts: Sequence[int]) -> list[View]:
        """Views of those of `experts` that are in flight in the background; a pass waits for them from here on."""
        found = [expert for expert in experts if (layer, expert) in self._background]
        self._background.difference_update((layer, expert) for expert in found)
        return [self._slots.view(layer, expert, self._slots.in_flight[layer, expert]) for expert in found]

    def confirm(self, keys: Sequence[Key]) -> None:
        """A prefetch plan named `keys`; the eviction policy hears of those that hold a slot."""
        by_layer: dict[int, list[int]] = {}
        for key in keys:
            if self.holds(key):
                by_layer.setdefault(key[0], []).append(key[1])
        for layer, experts in by_layer.items():
            self._eviction.confirm(layer, experts)

    def try_reserve(
        self, layer: int, expert: int, reason: Reason = Reason.DEMAND, *, spared: Collection[Key] = ()
    ) -> View | None:
        """A slot in flight for an expert that holds none; None while no slot can be had.

        Evicts, though none of `spared`, when no free slot is left for this layer. Views of the slot's former expert are
        stale from here on.
        """
        key = (layer, expert)
        slot = self._victims.try_take(key, reason, spared)
        if slot is None:
            return None
        self.uses.begun(key, reason)
        if reason is not Reason.DEMAND:
            self._background.add(key)
        return self._slots.give(slot, key)

    def background(self, layer: int | None = None) -> list[View]:
        """Views in flight (of `layer`) that no pass waits for, in the order of their reservation."""
        if not self._background:
            return []
        slots, background = self._slots, self._background
        return [
            slots.view(*k, slot) for k, slot in slots.in_flight.items() if layer in (None, k[0]) and k in background
        ]

    def is_background(self, view: View) -> bool:
        """Whether the transfer of an in-flight view has no pass that waits for it."""
        return view[:2] in self._background

    def commit(self, view: View) -> None:
        """The bytes of an in-flight slot have arrived: resident, with one pin if a pass waits for it."""
        key = view[:2]
        self._slots.land(view, pinned=key not in self._background)
        self._background.discard(key)

    def fail(self, view: View) -> None:
        """The transfer of an in-flight slot failed or was cancelled: the slot is free, its contents nobody's."""
        key = view[:2]
        self._slots.fail(view)
        self._background.discard(key)
        self._victims.lost(key)

    def resize(self, num_slots: int, *, floor: int) -> list[int]:
        """From now on `num_slots` up to `max_slots`, with another floor. Returns the slots taken out of use.

        Evicts by the policy as far as free slots do not suffice. Nothing may be pinned or in flight.
        """
        return self._victims.resize(num_slots, floor=floor)

    def resident(self, layer: int) -> dict[int, int]:
        """expert -> slot of `layer`; a copy."""
        return dict(self._slots.resident[layer])

    def check_integrity(self) -> None:
        """Raises RuntimeError unless free, in-flight and resident slots partition all slots, idle ones unpinned, and
        every prefetch is in flight, resident or accounted for."""
        problems = self._slots.problems() + self._victims.problems()
        if not self._background <= self._slots.in_flight.keys():
            problems.append("a background transfer that is not in flight")
        problems += self.uses.problems(set(self._slots.owners().values()))
        if problems:
            raise RuntimeError(f"expert residency: {'; '.join(problems)}")

    def check_idle(self) -> None:
        """check_integrity, and no pin and no awaited transfer left over from a finished forward."""
        self.check_integrity()
        pins, awaited = self._slots.num_pins, len(self._slots.in_flight) - len(self._background)
        if pins or awaited:
            raise RuntimeError(f"expert residency: {pins} pins, {awaited} transfers left over")
