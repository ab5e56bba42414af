"""The two orders that eviction policies are made of: a queue and a heap, each over all layers and within each."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
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
    """Keys in ascending order of a score that may rise at any time unannounced; a fall must be told by `push`.

    An entry holds a score that its key once had. It is a lower bound, so it is enough to look again at the top.
    """

    def __init__(self, score: Callable[[Key], Any]) -> None:
        self._score, self._pushes = score, 0
        self._live: dict[Key, int] = {}
        self._all: list[Entry] = []
        self._of_layer: defaultdict[int, list[Entry]] = defaultdict(list)

    def __contains__(self, key: Key) -> bool:
        return key in self._live

    def push(self, key: Key) -> None:
        """A new key, or one whose score has fallen."""
        self._pushes += 1
        self._live[key] = self._pushes
        entry = (self._score(key), key, self._pushes)
        heappush(self._all, entry)
        heappush(self._of_layer[key[0]], entry)
        if len(self._all) > 4 * len(self._live) + 64:
            self.rebuild()

    def remove(self, key: Key) -> None:
        del self._live[key]

    def rebuild(self) -> None:
        """After many scores have fallen; drops what removed keys left behind."""
        self._all = [(self._score(key), key, push) for key, push in self._live.items()]
        self._of_layer.clear()
        for entry in self._all:
            self._of_layer[entry[1][0]].append(entry)
        for heap in (self._all, *self._of_layer.values()):
            heapify(heap)

    def first(self, layers: Sequence[int], evictable: Evictable) -> Key | None:
        """The evictable key of `layers` with the smallest score; of equal ones the smallest key."""
        entry = self.first_entry(layers, evictable)
        return None if entry is None else entry[1]

    def first_entry(self, layers: Sequence[int], evictable: Evictable) -> Entry | None:
        """Score and key of `first`."""
        if len(layers) > FEW_LAYERS:
            return self._first(self._all, layers, evictable)
        entries = [self._first(self._of_layer[layer], layers, evictable) for layer in layers]
        return min((entry for entry in entries if entry is not None), default=None)

    def _first(self, heap: list[Entry], layers: Sequence[int], evictable: Evictable) -> Entry | None:
        aside, found = [], None
        while heap:
            entry = heap[0]
            key = entry[1]
            if self._live.get(key) != entry[2]:
                heappop(heap)
            elif (score := self._score(key)) != entry[0]:
                heapreplace(heap, (score, key, entry[2]))
            elif key[0] in layers and evictable(*key):
                found = entry
                break
            else:
                aside.append(heappop(heap))
        for entry in aside:
            heappush(heap, entry)
        return found
