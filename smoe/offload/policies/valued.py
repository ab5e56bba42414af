"""Eviction by a value that what is asked for gains and that all lose together."""

from collections.abc import Mapping, Sequence

from smoe.offload.policies.base import Deaf
from smoe.offload.policies.order import Heap
from smoe.offload.policies.protocols import Evictable, Key, Reason

LARGEST = 2.0**500


class Valued(Deaf):
    """Evicts the expert of least value; of equal ones the one asked for, or arrived, first. A value outlives its slot.

    Decay divides every value by `decay`. Instead of that, what is added from then on counts `decay` times as much: the
    order is the same, and nobody's place in it has to be mended. Values are in units of `self._unit`.
    """

    def __init__(self, *, decay: float) -> None:
        self._factor, self._unit, self._clock = decay, 1.0, 0
        self._values: dict[Key, float] = {}
        self._scores: dict[Key, tuple[float, int]] = {}  # of those that hold a slot: value, clock
        self._heap = Heap(self._scores)

    def admit(self, layer: int, expert: int, reason: Reason) -> None:
        self._clock += 1
        key = (layer, expert)
        self._scores[key] = (self._values.get(key, 0.0), self._clock)
        self._heap.push(key)

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        pass

    def forget(self, layer: int, expert: int) -> None:
        self._heap.remove((layer, expert))
        del self._scores[layer, expert]

    def victim(self, layers: Sequence[int], evictable: Evictable, wanted: Key, reason: Reason) -> Key | None:
        return self._heap.first(layers, evictable)

    def _add(self, layer: int, amounts: Mapping[int, float], scale: float) -> None:
        values, scores, unit = self._values, self._scores, self._unit * scale
        for expert, amount in amounts.items():
            key = (layer, expert)
            values[key] = value = values.get(key, 0.0) + amount * unit
            if key in scores:
                self._clock += 1
                scores[key] = (value, self._clock)

    def _decay(self) -> None:
        self._unit *= self._factor
        if self._unit >= LARGEST:
            for key in self._values:
                self._values[key] /= self._unit
            for key, (value, clock) in self._scores.items():
                self._scores[key] = (value / self._unit, clock)
            self._unit = 1.0
            self._heap.rebuild()
