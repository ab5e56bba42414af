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
        self._clock = self._size = 0
        # Dicts are in order of insertion. The one over all layers exists from the first time that it is asked for.
        self._ages: defaultdict[int, dict[int, int]] = defaultdict(dict)  # layer -> expert -> clock
        self._all: OrderedDict[Key, None] | None = None

    def __contains__(self, key: Key) -> bool:
        return key[1] in self._ages[key[0]]

    def __len__(self) -> int:
        return self._size

    def append(self, layer: int, experts: Iterable[int]) -> None:
        """To the young end, in this order, whether in the queue already or not."""
        ages, everyone, clock = self._ages[layer], self._all, self._clock
        for expert in experts:
            clock += 1
            if expert in ages:
                del ages[expert]
            else:
                self._size += 1
            ages[expert] = clock
            if everyone is not None:
                key = (layer, expert)
                everyone[key] = None
                everyone.move_to_end(key)
        self._clock = clock

    def push(self, layer: int, expert: int) -> None:
        """To the young end; it is not in the queue."""
        self._clock += 1
        self._size += 1
        self._ages[layer][expert] = self._clock
        if self._all is not None:
            self._all[layer, expert] = None

    def remove(self, layer: int, expert: int) -> None:
        del self._ages[layer][expert]
        self._size -= 1
        if self._all is not None:
            del self._all[layer, expert]

    def keys(self, layer: int | None = None) -> list[Key]:
        """Oldest first, of all layers or of one."""
        return list(self._everyone()) if layer is None else [(layer, expert) for expert in self._ages[layer]]

    def oldest(self) -> Key:
        return next(iter(self._everyone()))

    def earliest(self, keys: Sequence[Key]) -> Key | None:
        """The oldest of some that are in the queue."""
        return min(keys, key=self._age, default=None)

    def first(self, layers: Sequence[int], evictable: Evictable) -> Key | None:
        """The oldest that is evictable, of `layers`."""
        if len(layers) == 1:
            layer = layers[0]
            for expert in self._ages[layer]:
                if evictable(layer, expert):
                    return layer, expert
            return None
        if len(layers) > FEW_LAYERS:
            for layer, expert in self._everyone():
                if layer in layers and evictable(layer, expert):
                    return layer, expert
            return None
        best, best_age = None, self._clock + 1
        for layer in layers:
            for expert, age in self._ages[layer].items():
                if age > best_age:
                    break
                if evictable(layer, expert):
                    best, best_age = (layer, expert), age
                    break
        return best

    def _age(self, key: Key) -> int:
        return self._ages[key[0]][key[1]]

    def _everyone(self) -> OrderedDict[Key, None]:
        if self._all is None:
            keys = [(layer, expert) for layer, ages in self._ages.items() for expert in ages]
            self._all = OrderedDict.fromkeys(sorted(keys, key=self._age))
        return self._all


Entry = tuple[Any, Key, int]


class Heap:
    """Keys in ascending order of their scores, which may rise at any time unannounced; a fall must be told by `push`.

    An entry holds a score that its key once had. It is a lower bound, so it is enough to look again at the top.
    """

    def __init__(self, scores: Mapping[Key, Any]) -> None:
        """`scores` is looked into, not copied; it has every key that is in the heap."""
        self._scores, self._pushes = scores, 0
        self._live: dict[Key, int] = {}
        # A heap of one layer, or under None of all, exists from the first time that it is asked for. What was on top
        # and could not be evicted lies aside: a pass holds the same ones each time it asks.
        self._heaps: dict[int | None, list[Entry]] = {}
        self._aside: dict[int | None, list[Entry]] = {}
        self._rebuilt_at = 0  # pushes then

    def __contains__(self, key: Key) -> bool:
        return key in self._live

    def push(self, key: Key) -> None:
        """A new key, or one whose score has fallen."""
        self._pushes = pushes = self._pushes + 1
        self._live[key] = pushes
        if pushes - self._rebuilt_at > 4 * len(self._live) + 64:
            self.rebuild()
            return
        heaps, layer = self._heaps, key[0]
        entry = (self._scores[key], key, pushes)
        if layer in heaps:
            heappush(heaps[layer], entry)
        if None in heaps:
            heappush(heaps[None], entry)

    def remove(self, key: Key) -> None:
        del self._live[key]

    def rebuild(self) -> None:
        """After many scores have fallen; drops what removed keys left behind."""
        self._rebuilt_at, scores = self._pushes, self._scores
        heaps: dict[int | None, list[Entry]] = {which: [] for which in self._heaps}
        nobody: list[Entry] = []
        everyone = heaps.get(None)
        for key, push in self._live.items():
            entry = (scores[key], key, push)
            heaps.get(key[0], nobody).append(entry)
            if everyone is not None:
                everyone.append(entry)
        for heap in heaps.values():
            heapify(heap)
        self._heaps = heaps
        self._aside = {which: [] for which in heaps}

    def first(self, layers: Sequence[int], evictable: Evictable) -> Key | None:
        """The evictable key of `layers` with the smallest score; of equal ones the smallest key."""
        entry = self.first_entry(layers, evictable)
        return None if entry is None else entry[1]

    def first_entry(self, layers: Sequence[int], evictable: Evictable) -> Entry | None:
        """Score and key of `first`."""
        if len(layers) == 1:
            return self._first(layers[0], layers, evictable)
        if len(layers) > FEW_LAYERS:
            return self._first(None, layers, evictable)
        entries = [self._first(layer, layers, evictable) for layer in layers]
        return min([entry for entry in entries if entry is not None], default=None)

    def _first(self, which: int | None, layers: Sequence[int], evictable: Evictable) -> Entry | None:
        heap = self._heaps.get(which)
        if heap is None:
            heap = self._heaps[which] = self._entries(which)
            self._aside[which] = []
        live, scores = self._live, self._scores
        if self._aside[which]:
            self._take_back(which, evictable)
        aside, elsewhere, found = self._aside[which], [], None
        while heap:
            entry = heap[0]
            score, key, push = entry
            if live.get(key) != push:
                heappop(heap)
            elif (now := scores[key]) != score:
                heapreplace(heap, (now, key, push))
            elif which is None and key[0] not in layers:
                elsewhere.append(heappop(heap))
            elif evictable(*key):
                found = entry
                break
            else:
                aside.append(heappop(heap))
        for entry in elsewhere:
            heappush(heap, entry)
        return found

    def _take_back(self, which: int | None, evictable: Evictable) -> None:
        """What can be evicted now."""
        heap, live, kept = self._heaps[which], self._live, []
        for entry in self._aside[which]:
            _, key, push = entry
            if live.get(key) == push:
                if evictable(*key):
                    heappush(heap, entry)
                else:
                    kept.append(entry)
        self._aside[which] = kept

    def _entries(self, which: int | None) -> list[Entry]:
        scores = self._scores
        entries = [(scores[key], key, push) for key, push in self._live.items() if which is None or which == key[0]]
        heapify(entries)
        return entries
