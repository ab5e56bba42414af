"""The two orders that eviction policies are made of: a queue and a heap, each over all layers and within each."""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from smoe.offload.policies.protocols import Evictable, Key

FEW_LAYERS = 4
"""Up to here the heads of single layers are compared; above, the order over all layers is walked. A pool of one layer
is asked for one layer, a shared pool for nearly all: walking would cost the first one a scan of the other layers."""


class Queue:
    """Keys in the order in which they were last appended."""

    def __init__(self) -> None:
        self._clock = 0
        self._all: OrderedDict[Key, int] = OrderedDict()
        self._of_layer: defaultdict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)

    def __contains__(self, key: Key) -> bool:
        return key in self._all

    def __len__(self) -> int:
        return len(self._all)

    def append(self, layer: int, experts: Iterable[int]) -> None:
        """To the young end, in this order, whether in the queue already or not."""
        everyone, own = self._all, self._of_layer[layer]
        for expert in experts:
            self._clock += 1
            key = (layer, expert)
            everyone[key] = self._clock
            everyone.move_to_end(key)
            own[expert] = None
            own.move_to_end(expert)

    def remove(self, layer: int, expert: int) -> None:
        del self._all[layer, expert]
        del self._of_layer[layer][expert]

    def keys(self, layer: int | None = None) -> list[Key]:
        """Oldest first, of all layers or of one."""
        return list(self._all) if layer is None else [(layer, expert) for expert in self._of_layer[layer]]

    def oldest(self) -> Key:
        return next(iter(self._all))

    def earliest(self, keys: Sequence[Key]) -> Key | None:
        """The oldest of some that are in the queue."""
        return min(keys, key=self._all.__getitem__, default=None)

    def first(self, layers: Sequence[int], evictable: Evictable) -> Key | None:
        """The oldest that is evictable, of `layers`."""
        if len(layers) > FEW_LAYERS:
            for layer, expert in self._all:
                if layer in layers and evictable(layer, expert):
                    return layer, expert
            return None
        best, best_age = None, self._clock + 1
        for layer in layers:
            for expert in self._of_layer[layer]:
                if evictable(layer, expert):
                    if (age := self._all[layer, expert]) < best_age:
                        best, best_age = (layer, expert), age
                    break
        return best


Entry = tuple[Any, Key, int]


class Heap:
    """Keys in ascending order of their scores, which may rise at any time unannounced; a fall must be told by `push`.

    An entry holds a score that its key once had. It is a lower bound, so it is enough to look again at the top.
    """

    def __init__(self, scores: Mapping[Key, Any]) -> None:
        """`scores` is looked into, not copied; it has every key that is in the heap."""
        self._score, self._pushes = scores.__getitem__, 0
        self._live: dict[Key, int] = {}
        # A heap of one layer, or under None of all, exists from the first time that it is asked for.
        self._heaps: dict[int | None, list[Entry]] = {}
        self._rebuilt_at = 0  # pushes then

    def __contains__(self, key: Key) -> bool:
        return key in self._live

    def push(self, key: Key) -> None:
        """A new key, or one whose score has fallen."""
        self._pushes += 1
        self._live[key] = self._pushes
        if self._pushes - self._rebuilt_at > 4 * len(self._live) + 64:
            self.rebuild()
            return
        entry = (self._score(key), key, self._pushes)
        for which in (None, key[0]):
            if which in self._heaps:
                heappush(self._heaps[which], entry)

    def remove(self, key: Key) -> None:
        del self._live[key]

    def rebuild(self) -> None:
        """After many scores have fallen; drops what removed keys left behind."""
        self._rebuilt_at = self._pushes
        for which in self._heaps:
            self._heaps[which] = self._entries(which)

    def first(self, layers: Sequence[int], evictable: Evictable) -> Key | None:
        """The evictable key of `layers` with the smallest score; of equal ones the smallest key."""
        entry = self.first_entry(layers, evictable)
        return None if entry is None else entry[1]

    def first_entry(self, layers: Sequence[int], evictable: Evictable) -> Entry | None:
        """Score and key of `first`."""
        if len(layers) > FEW_LAYERS:
            return self._first(None, layers, evictable)
        entries = [self._first(layer, layers, evictable) for layer in layers]
        return min((entry for entry in entries if entry is not None), default=None)

    def _first(self, which: int | None, layers: Sequence[int], evictable: Evictable) -> Entry | None:
        if which not in self._heaps:
            self._heaps[which] = self._entries(which)
        heap, live, score_of = self._heaps[which], self._live, self._score
        aside, found = [], None
        while heap:
            entry = heap[0]
            score, key, push = entry
            if live.get(key) != push:
                heappop(heap)
            elif (now := score_of(key)) != score:
                heapreplace(heap, (now, key, push))
            elif key[0] in layers and evictable(*key):
                found = entry
                break
            else:
                aside.append(heappop(heap))
        for entry in aside:
            heappush(heap, entry)
        return found

    def _entries(self, which: int | None) -> list[Entry]:
        entries = [(self._score(key), key, push) for key, push in self._live.items() if which in (None, key[0])]
        heapify(entries)
        return entries
