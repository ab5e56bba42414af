"""Residency: which expert holds which slot. Pure bookkeeping, torch-free, the same object live and in simulation.

A slot is in exactly one state:

    free --reserve--> in flight --commit--> resident (pinned once if asked for) --unpin--> resident, evictable
      ^                   |                                                        |
      |                   | fail                                                   | evicted by a reserve:
      +-------------------+                                                        v in flight for the next expert

A layer is safe from the others up to its floor (smoe.offload.floors).

Counts are those of ExpertStats; an expert is asked for once a pass, and is then a hit, late, or a miss.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from smoe.offload.floors import Floors, check_floor
from smoe.offload.policies.protocols import Eviction, Key, Reason, Routing


class View(NamedTuple):
    """A right to use a slot's contents while the slot's generation is `generation`; picklable."""

    layer: int
    expert: int
    slot: int
    generation: int


class Residency:
    """One thread calls. Each pin (of `pin`, and of the `commit` of what a pass waits for) is given back by `unpin`."""

    def __init__(
        self, num_slots: int, layers: Sequence[int], eviction: Eviction, *, floor: int, max_slots: int | None = None
    ) -> None:
        """`layers` are the MoE layers; `floor` >= 1 slots of each are safe from the other layers. Slots are numbered
        below `max_slots` (default: `num_slots`), up to which `resize` can go."""
        check_floor(floor, num_slots, len(layers))
        self.num_slots = num_slots
        self.max_slots = num_slots if max_slots is None else max_slots
        self.hits = self.late = self.cold_misses = self.collision_misses = self.compulsory_misses = 0
        self.prefetched = self.prefetch_used = self.wasted = self.admitted = 0
        self.evictions = self.peak_used = 0
        self._eviction = eviction
        self._epoch = 1
        self._slot_of: dict[int, dict[int, int]] = {layer: {} for layer in layers}
        self._in_flight: dict[Key, int] = {}
        self._background: set[Key] = set()  # in flight without a pass that waits
        self._unused: set[Key] = set()  # prefetched, not asked for yet
        self._owner: list[Key | None] = [None] * self.max_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._out_of_use = list(range(self.max_slots - 1, num_slots - 1, -1))
        self._pins = [0] * self.max_slots
        self._generation = [0] * self.max_slots
        self._floors = Floors(layers, floor)
        self.prefetch_paid = {layer: [0, 0] for layer in layers}
        """Of the prefetches into a layer that ended: how many were asked for, and how many wasted."""
        self._brought: dict[int, dict[int, int]] = {layer: {} for layer in layers}  # expert -> epoch of its transfer

    @property
    def background_in_flight(self) -> int:
        """Transfers under way that no pass waits for."""
        return len(self._background)

    @property
    def background_keys(self) -> AbstractSet[Key]:
        """What is under way without a pass that waits for it: a view that changes."""
        return self._background

    def begin_epoch(self) -> None:
        self._epoch += 1
        self._eviction.begin_epoch()

    def begin_layer(self, routing: Routing) -> None:
        """The pass of `routing.layer` starts."""
        self._eviction.begin_layer(routing.layer)
        self._eviction.demand(routing)

    def try_hit_all(self, layer: int, experts: Sequence[int]) -> bool:
        """Whether distinct `experts` are all resident; then they are counted as hits, else nothing changes.

        Pins nothing: their slots are theirs until the next call of any method.
        """
        if not self._slot_of[layer].keys() >= set(experts):
            return False
        self._hit(layer, experts)
        self._eviction.touch(layer, experts)
        return True

    def ask(self, layer: int, experts: Sequence[int]) -> list[int]:
        """Counts what a pass asks for (distinct) and touches the hits and the late, in the order given. Returns the
        misses.

        Changes no slot. A late expert has one: its transfer is under way. It is used as a hit is, however it came.
        """
        slot_of, brought = self._slot_of[layer], self._brought[layer]
        found: list[int] = []
        used: list[int] = []
        missing: list[int] = []
        for expert in experts:
            if expert in slot_of:
                found.append(expert)
                used.append(expert)
            elif (layer, expert) in self._in_flight:
                self.late += 1
                used.append(expert)
                if (layer, expert) in self._unused:
                    self._unused.remove((layer, expert))
                    self.prefetch_paid[layer][0] += 1
            else:
                missing.append(expert)
                epoch = brought.get(expert)
                if epoch == self._epoch:
                    self.collision_misses += 1
                else:
                    self.cold_misses += 1
                    self.compulsory_misses += epoch is None
        if found:
            self._hit(layer, found)
        if used:
            self._eviction.touch(layer, used)
        return missing

    def pin(self, layer: int, experts: Sequence[int]) -> list[View]:
        """Pinned views of those of distinct `experts` that are resident, in the order given."""
        slot_of = self._slot_of[layer]
        views = [self._view(layer, expert, slot_of[expert]) for expert in experts if expert in slot_of]
        for view in views:
            self._pins[view.slot] += 1
        return views

    def claim(self, layer: int, experts: Sequence[int]) -> list[View]:
        """Views of those of `experts` that are in flight in the background; a pass waits for them from here on."""
        found = [expert for expert in experts if (layer, expert) in self._background]
        self._background.difference_update((layer, expert) for expert in found)
        return [self._view(layer, expert, self._in_flight[layer, expert]) for expert in found]

    def confirm(self, keys: Sequence[Key]) -> None:
        """A prefetch plan named `keys`; the eviction policy hears of those that hold a slot."""
        by_layer: dict[int, list[int]] = {}
        for key in keys:
            if self.holds(key):
                by_layer.setdefault(key[0], []).append(key[1])
        for layer, experts in by_layer.items():
            self._eviction.confirm(layer, experts)

    def holds(self, key: Key) -> bool:
        """Whether `key` is resident or in flight."""
        return key[1] in self._slot_of[key[0]] or key in self._in_flight

    def try_reserve(
        self, layer: int, expert: int, reason: Reason = Reason.DEMAND, *, spared: Collection[Key] = ()
    ) -> View | None:
        """A slot in flight for an expert that holds none; None while no slot can be had.

        Evicts, though none of `spared`, when no free slot is left for this layer. Views of the slot's former expert are
        stale from here on.
        """
        key = (layer, expert)
        slot = self._bring(key, reason, spared)
        if slot is None:
            return None
        self._in_flight[key] = slot
        if reason is not Reason.DEMAND:
            self._background.add(key)
        if reason is Reason.PREFETCH:
            self.prefetched += 1
            self._unused.add(key)
        self.admitted += reason is Reason.ADMISSION
        return self._view(layer, expert, slot)

    def background(self, layer: int | None = None) -> list[View]:
        """Views in flight (of `layer`) that no pass waits for, in the order of their reservation."""
        if not self._background:
            return []
        background = self._background
        return [
            self._view(*k, slot) for k, slot in self._in_flight.items() if layer in (None, k[0]) and k in background
        ]

    def is_background(self, view: View) -> bool:
        """Whether the transfer of an in-flight view has no pass that waits for it."""
        return view[:2] in self._background

    def commit(self, view: View) -> None:
        """The bytes of an in-flight slot have arrived: resident, with one pin if a pass waits for it."""
        self.check(view)
        key = view[:2]
        del self._in_flight[key]
        self._slot_of[view.layer][view.expert] = view.slot
        if key in self._background:
            self._background.remove(key)
        else:
            self._pins[view.slot] += 1

    def fail(self, view: View) -> None:
        """The transfer of an in-flight slot failed or was cancelled: the slot is free, its contents nobody's."""
        self.check(view)
        key = view[:2]
        del self._in_flight[key]
        self._background.discard(key)
        self._lose(key, view.slot)
        self._free.append(view.slot)

    def resize(self, num_slots: int, *, floor: int) -> list[int]:
        """From now on `num_slots` up to `max_slots`, with another floor. Returns the slots taken out of use.

        Evicts by the policy as far as free slots do not suffice. Nothing may be pinned or in flight.
        """
        check_floor(floor, num_slots, len(self._slot_of))
        if num_slots > self.max_slots:
            raise ValueError(f"num_slots: {num_slots} (up to {self.max_slots})")
        assert not self._in_flight
        assert not any(self._pins)
        # A layer below the new floor keeps what it holds; the others have enough to give.
        self._floors.move(floor)
        taken = list[int]()
        while self.num_slots < num_slots:
            self._free.append(self._out_of_use.pop())
            self.num_slots += 1
        while self.num_slots > num_slots:
            taken.append(self._free.pop() if self._free else self._evict(self._floors.above()))
            self.num_slots -= 1
        # Free slots owed to layers below the floor may be missing now: those above it give.
        while len(self._free) < self._floors.owed:
            self._free.append(self._evict(self._floors.above()))
        self._out_of_use += taken
        self.peak_used = self.num_slots - len(self._free)
        return taken

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
        """Raises RuntimeError unless free, in-flight and resident slots partition all slots, idle ones unpinned, and
        every prefetch is in flight, resident or accounted for."""
        resident = {slot: (layer, e) for layer, held in self._slot_of.items() for e, slot in held.items()}
        in_flight = {slot: key for key, slot in self._in_flight.items()}
        states = Counter([*self._free, *self._out_of_use, *in_flight, *resident])
        problems = []
        if sorted(states.elements()) != list(range(self.max_slots)):
            problems.append("free, in-flight and resident slots are not a partition")
        if len(self._out_of_use) != self.max_slots - self.num_slots:
            problems.append("slots out of use are miscounted")
        owners = {slot: owner for slot, owner in enumerate(self._owner) if owner is not None}
        if owners != resident | in_flight or len(set(owners.values())) != len(owners):
            problems.append("owners differ from residents and transfers")
        problems += self._floors.problems(Counter(layer for layer, _ in owners.values()), len(self._free))
        if any(pins < 0 or (pins and slot not in resident) for slot, pins in enumerate(self._pins)):
            problems.append("a pin on a slot that is not resident")
        if not self._background <= self._in_flight.keys():
            problems.append("a background transfer that is not in flight")
        if not self._unused <= set(owners.values()):
            problems.append("an unused prefetch that holds no slot")
        if self.prefetched < self.prefetch_used + self.wasted + len(self._unused):
            problems.append("more prefetches ended than began")
        if problems:
            raise RuntimeError(f"expert residency: {'; '.join(problems)}")

    def check_idle(self) -> None:
        """check_integrity, and no pin and no awaited transfer left over from a finished forward."""
        self.check_integrity()
        awaited = len(self._in_flight) - len(self._background)
        if any(self._pins) or awaited:
            raise RuntimeError(f"expert residency: {sum(self._pins)} pins, {awaited} transfers left over")

    def _view(self, layer: int, expert: int, slot: int) -> View:
        return View(layer, expert, slot, self._generation[slot])

    def _hit(self, layer: int, experts: Sequence[int]) -> None:
        self.hits += len(experts)
        if self._unused:
            used = self._unused.intersection([(layer, expert) for expert in experts])
            self.prefetch_used += len(used)
            self.prefetch_paid[layer][0] += len(used)
            self._unused -= used

    def _bring(self, key: Key, reason: Reason, spared: Collection[Key]) -> int | None:
        """A slot that is the key's from here on, though nothing is in it; None while none can be had."""
        slot = self._take_slot(key, reason, spared)
        if slot is None:
            return None
        layer, expert = key
        self._owner[slot] = key
        self._brought[layer][expert] = self._epoch
        self._generation[slot] += 1
        self._floors.add(layer, 1)
        self._eviction.admit(layer, expert, reason)
        used = self.num_slots - len(self._free)
        if used > self.peak_used:
            self.peak_used = used
        return slot

    def _take_slot(self, wanted: Key, reason: Reason, spared: Collection[Key]) -> int | None:
        if self._free and self._floors.may_take_free(wanted[0], len(self._free)):
            return self._free.pop()
        may_lose = self._floors.may_lose_to(wanted[0])

        def unspared(layer: int, expert: int) -> bool:
            return (layer, expert) not in spared and self._evictable(layer, expert)

        victim = self._eviction.victim(may_lose, unspared if spared else self._evictable, wanted, reason)
        return None if victim is None else self._take_from(victim)

    def _evict(self, may_lose: Sequence[int]) -> int:
        """A slot that nobody gets."""
        nobody = (may_lose[0], -1)
        victim = self._eviction.victim(may_lose, self._evictable, nobody, Reason.DEMAND)
        if victim is None:
            raise RuntimeError("expert residency: the eviction policy names no victim")
        return self._take_from(victim)

    def _take_from(self, victim: Key) -> int:
        slot = self._slot_of[victim[0]].pop(victim[1])
        self._lose(victim, slot)
        self.evictions += 1
        return slot

    def _evictable(self, layer: int, expert: int) -> bool:
        slot = self._slot_of[layer].get(expert)
        return slot is not None and not self._pins[slot]

    def _lose(self, key: Key, slot: int) -> None:
        self._eviction.forget(*key)
        if key in self._unused:
            self._unused.remove(key)
            self.wasted += 1
            self.prefetch_paid[key[0]][1] += 1
        self._owner[slot] = None
        self._generation[slot] += 1
        self._floors.add(key[0], -1)
