"""Policies that count uses: LFU since admission, LFU behind a recent part (LFRU), and requests with decay."""

from collections.abc import Sequence

from smoe.offload.policies.base import Deaf
from smoe.offload.policies.demand import requests
from smoe.offload.policies.order import Heap, Queue
from smoe.offload.policies.protocols import Evictable, Key, Reason, Routing
from smoe.offload.policies.valued import Valued


class LFU(Deaf):
    """Evicts the expert used least often since it got its slot; of equal ones the one used, or arrived, first.

    The textbook's in-cache LFU: what is evicted is forgotten. With `prefetch_touch` a prefetch, or its confirmation,
    counts as a use. Without, a prefetched expert starts with none, and so goes before all that were demanded.
    """

    def __init__(self, *, prefetch_touch: bool = True) -> None:
        self._prefetch_touch, self._clock = prefetch_touch, 0
        self._uses: dict[Key, tuple[int, int]] = {}
        self._heap = Heap(self._uses)

    def admit(self, layer: int, expert: int, reason: Reason) -> None:
        self._clock += 1
        self._uses[layer, expert] = (int(self._prefetch_touch or reason is not Reason.PREFETCH), self._clock)
        self._heap.push((layer, expert))

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        for expert in experts:
            self._clock += 1
            self._uses[layer, expert] = (self._uses[layer, expert][0] + 1, self._clock)

    def confirm(self, layer: int, experts: Sequence[int]) -> None:
        if self._prefetch_touch:
            self.touch(layer, experts)

    def forget(self, layer: int, expert: int) -> None:
        self._heap.remove((layer, expert))
        del self._uses[layer, expert]

    def victim(self, layers: Sequence[int], evictable: Evictable, wanted: Key, reason: Reason) -> Key | None:
        return self._heap.first(layers, evictable)


class LFRU(LFU):
    """Least frequently *and* recently used (Bilal and Kang, "A cache management scheme for efficient content eviction
    and replication in cache networks", IEEE Access 2017): the most recently used `recent` share of the residents is
    privileged; the victim is the least often used of the others. Only if none of those can go, the least recent goes.
    A prefetch, or its confirmation, counts as a use.
    """

    def __init__(self, *, recent: float = 0.5) -> None:
        super().__init__()
        self._recent = recent
        self._privileged = Queue()

    def admit(self, layer: int, expert: int, reason: Reason) -> None:
        self._clock += 1
        self._uses[layer, expert] = (1, self._clock)
        self._privileged.push(layer, expert)
        self._demote()

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        super().touch(layer, experts)
        for expert in experts:
            if (layer, expert) in self._heap:
                self._heap.remove((layer, expert))
        self._privileged.append(layer, experts)
        self._demote()

    def forget(self, layer: int, expert: int) -> None:
        if (layer, expert) in self._privileged:
            self._privileged.remove(layer, expert)
            del self._uses[layer, expert]
        else:
            super().forget(layer, expert)

    def victim(self, layers: Sequence[int], evictable: Evictable, wanted: Key, reason: Reason) -> Key | None:
        common = super().victim(layers, evictable, wanted, reason)
        return self._privileged.first(layers, evictable) if common is None else common

    def _demote(self) -> None:
        while len(self._privileged) > self._recent * len(self._uses):
            oldest = self._privileged.oldest()
            self._privileged.remove(*oldest)
            self._heap.push(oldest)


class Frequency(Valued):
    """Evicts the expert requested least often (spec P4): counts of what the router asked for, resident or not and
    whatever ran in its place, kept across evictions and halved every `halve_epochs`.
    """

    def __init__(self, *, halve_epochs: int = 256) -> None:
        super().__init__(decay=2.0)
        self._halve_epochs, self._epoch = halve_epochs, 0

    def begin_epoch(self) -> None:
        self._epoch += 1
        if self._epoch % self._halve_epochs == 0:
            self._decay()

    def demand(self, routing: Routing) -> None:
        self._add(routing.layer, requests(routing), 1.0)
