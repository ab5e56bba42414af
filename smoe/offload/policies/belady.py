"""Belady's oracle: the ceiling of every comparison on demand alone. Only a simulation can ask it."""

from collections.abc import Sequence

from smoe.offload.policies.base import Deaf
from smoe.offload.policies.future import NEVER, Future
from smoe.offload.policies.order import Heap
from smoe.offload.policies.protocols import Evictable, Key, Reason


class Belady(Deaf):
    """Evicts the expert whose next use is farthest away (Belady, IBM Systems Journal 1966): with forced admission no
    policy has fewer misses on demand alone.

    Without forced admission it also refuses a slot, with `victim` None, to an expert that will be used no sooner than
    any that could go: the caller then runs a demanded one without keeping it, and drops a prefetch. The bound is
    lower, and no engine that computes only from slots can reach it.

    The passes must be the future's own, in its order: `begin_layer` once for each.
    """

    def __init__(self, future: Future, *, forced: bool = True) -> None:
        self._future, self._forced, self._pass = future, forced, -1
        self._scores = {key: -use for key, use in future.first_uses.items()}  # minus the next use, of every key
        self._heap = Heap(self._scores)

    def begin_layer(self, layer: int) -> None:
        self._pass += 1
        self._future.check(self._pass, layer)
        experts, uses = self._future.experts_of(self._pass), self._future.next_uses_of(self._pass)
        for expert, use in zip(experts, uses, strict=True):
            key = (layer, expert)
            self._scores[key] = -use
            if key in self._heap:
                self._heap.push(key)

    def admit(self, layer: int, expert: int, reason: Reason) -> None:
        self._scores.setdefault((layer, expert), -NEVER)
        self._heap.push((layer, expert))

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        pass

    def forget(self, layer: int, expert: int) -> None:
        self._heap.remove((layer, expert))

    def victim(self, layers: Sequence[int], evictable: Evictable, wanted: Key, reason: Reason) -> Key | None:
        entry = self._heap.first_entry(layers, evictable)
        if entry is None or (not self._forced and self._scores.get(wanted, -NEVER) <= entry[0]):
            return None
        return entry[1]
