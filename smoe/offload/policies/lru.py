"""Least recently used, in two readings of what a prefetch is (spec P5: the choice decides how often it collides)."""

from collections.abc import Sequence

from smoe.offload.policies.base import Deaf
from smoe.offload.policies.order import Queue
from smoe.offload.policies.protocols import Evictable, Key, Reason


class LRU(Deaf):
    """Evicts the expert whose last use is longest ago, over the layers allowed.

    With `prefetch_touch` a prefetch, or its confirmation, counts as a use. Without, a prefetched expert that has not
    been used yet is older than every used one (those in order of arrival), so the next prefetch takes its slot.
    """

    def __init__(self, *, prefetch_touch: bool = True) -> None:
        self._prefetch_touch = prefetch_touch
        self._unused, self._used = Queue(), Queue()

    def admit(self, layer: int, expert: int, reason: Reason) -> None:
        touched = self._prefetch_touch or reason is not Reason.PREFETCH
        (self._used if touched else self._unused).push(layer, expert)

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        if not self._prefetch_touch:
            for expert in experts:
                if (layer, expert) in self._unused:
                    self._unused.remove(layer, expert)
        self._used.append(layer, experts)

    def confirm(self, layer: int, experts: Sequence[int]) -> None:
        if self._prefetch_touch:
            self._used.append(layer, experts)

    def forget(self, layer: int, expert: int) -> None:
        if self._prefetch_touch or (layer, expert) not in self._unused:
            self._used.remove(layer, expert)
        else:
            self._unused.remove(layer, expert)

    def victim(self, layers: Sequence[int], evictable: Evictable, wanted: Key, reason: Reason) -> Key | None:
        unused = None if self._prefetch_touch else self._unused.first(layers, evictable)
        return self._used.first(layers, evictable) if unused is None else unused
