"""Policies that do not look at uses: first in first out, and a random choice as the floor of every comparison."""

from collections import defaultdict
from collections.abc import Sequence
from random import Random

from smoe.offload.policies.base import Deaf
from smoe.offload.policies.order import FEW_LAYERS, Queue
from smoe.offload.policies.protocols import Evictable, Key, Reason

TRIES = 16
"""Blind draws before the choice is made among those that are evictable, which costs a look at each."""


class FIFO(Deaf):
    """Evicts the expert that got its slot first."""

    def __init__(self) -> None:
        self._queue = Queue()

    def admit(self, layer: int, expert: int, reason: Reason) -> None:
        self._queue.push(layer, expert)

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        pass

    def forget(self, layer: int, expert: int) -> None:
        self._queue.remove(layer, expert)

    def victim(self, layers: Sequence[int], evictable: Evictable, wanted: Key, reason: Reason) -> Key | None:
        return self._queue.first(layers, evictable)


class RandomChoice(Deaf):
    """Evicts any expert, each with equal chance; equal seeds and calls give equal choices."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)
        self._all = _Bag()
        self._of_layer: defaultdict[int, _Bag] = defaultdict(_Bag)

    def admit(self, layer: int, expert: int, reason: Reason) -> None:
        for bag in (self._all, self._of_layer[layer]):
            bag.add((layer, expert))

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        pass

    def forget(self, layer: int, expert: int) -> None:
        for bag in (self._all, self._of_layer[layer]):
            bag.remove((layer, expert))

    def victim(self, layers: Sequence[int], evictable: Evictable, wanted: Key, reason: Reason) -> Key | None:
        if len(layers) > FEW_LAYERS:
            keys = self._all.keys
        elif len(layers) == 1:
            keys = self._of_layer[layers[0]].keys
        else:
            keys = [key for layer in layers for key in self._of_layer[layer].keys]
        for _ in range(TRIES if keys else 0):
            key = keys[int(self._random.random() * len(keys))]
            if key[0] in layers and evictable(*key):
                return key
        allowed = [key for key in keys if key[0] in layers and evictable(*key)]
        return self._random.choice(allowed) if allowed else None


class _Bag:
    """A set that can be drawn from by index; its order depends on the calls alone."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self._place: dict[Key, int] = {}

    def add(self, key: Key) -> None:
        self._place[key] = len(self.keys)
        self.keys.append(key)

    def remove(self, key: Key) -> None:
        place, last = self._place.pop(key), self.keys.pop()
        if last != key:
            self.keys[place] = last
            self._place[last] = place
