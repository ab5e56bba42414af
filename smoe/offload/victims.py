"""Victims: which slot an expert that holds none gets, and who loses it. Torch-free.

A free one where that is left for its layer, else that of an expert which the eviction policy names; a layer is safe
from the others up to its floor (smoe.offload.floors).
"""

from collections import Counter
from collections.abc import Collection, Sequence

from smoe.offload.floors import Floors, check_floor
from smoe.offload.policies.protocols import Eviction, Key, Reason
from smoe.offload.slots import Slots
from smoe.offload.uses import Uses


class Victims:
    def __init__(self, slots: Slots, uses: Uses, layers: Sequence[int], eviction: Eviction, *, floor: int) -> None:
        check_floor(floor, slots.num_slots, len(layers))
        self._slots, self._uses, self._eviction = slots, uses, eviction
        self._num_layers, self._floors = len(layers), Floors(layers, floor)

    def try_take(self, wanted: Key, reason: Reason, spared: Collection[Key]) -> int | None:
        """A slot that is `wanted`'s to be; None while none can be had. Evicts none of `spared`."""
        slots, layer = self._slots, wanted[0]
        if slots.num_free and self._floors.may_take_free(layer, slots.num_free):
            slot = slots.take_free()
        else:
            may_lose = self._floors.may_lose_to(layer)

            def unspared(layer: int, expert: int) -> bool:
                return (layer, expert) not in spared and slots.evictable(layer, expert)

            victim = self._eviction.victim(may_lose, unspared if spared else slots.evictable, wanted, reason)
            if victim is None:
                return None
            slot = self._evict(victim)
        self._floors.add(layer, 1)
        self._eviction.admit(layer, wanted[1], reason)
        return slot

    def lost(self, key: Key, *, evicted: bool = False) -> None:
        """It has no slot any more."""
        self._uses.lost(key, evicted=evicted)
        self._eviction.forget(*key)
        self._floors.add(key[0], -1)

    def resize(self, num_slots: int, *, floor: int) -> list[int]:
        """As Residency has it."""
        slots = self._slots
        check_floor(floor, num_slots, self._num_layers)
        if num_slots > slots.max_slots:
            raise ValueError(f"num_slots: {num_slots} (up to {slots.max_slots})")
        assert not slots.in_flight
        assert not slots.num_pins
        # A layer below the new floor keeps what it holds; the others have enough to give.
        self._floors.move(floor)
        while slots.num_slots < num_slots:
            slots.grow()
        taken = list[int]()
        while slots.num_slots > num_slots:
            taken.append(slots.take_free() if slots.num_free else self._evict_above())
            slots.put_aside(taken[-1])
        # Free slots owed to layers below the floor may be missing now: those above it give.
        while slots.num_free < self._floors.owed:
            slots.free(self._evict_above())
        slots.restart_peak()
        return taken

    def problems(self) -> list[str]:
        """What does not hold of the floors."""
        held = Counter(layer for layer, _ in self._slots.owners().values())
        return self._floors.problems(held, self._slots.num_free)

    def _evict_above(self) -> int:
        """A slot that nobody gets, of a layer above its floor."""
        may_lose = self._floors.above()
        victim = self._eviction.victim(may_lose, self._slots.evictable, (may_lose[0], -1), Reason.DEMAND)
        if victim is None:
            raise RuntimeError("expert residency: the eviction policy names no victim")
        return self._evict(victim)

    def _evict(self, victim: Key) -> int:
        slot = self._slots.evict(victim)
        self.lost(victim, evicted=True)
        return slot
