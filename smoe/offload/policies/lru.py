"""Least recently used."""

from collections.abc import Sequence

from smoe.offload.policies.eviction import Evictable


class LRU:
    """Evicts the expert whose last use (or admission, if not used since) is longest ago, over the layers allowed.

    One dict a layer, in order of use, with the time: a victim among few layers costs no scan of the others.
    """

    def __init__(self) -> None:
        self._clock = 0
        self._last_use: dict[int, dict[int, int]] = {}

    def admit(self, layer: int, expert: int) -> None:
        self._clock += 1
        self._last_use.setdefault(layer, {})[expert] = self._clock

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        self._clock += 1
        order = self._last_use[layer]
        for expert in experts:
            del order[expert]
        order.update(dict.fromkeys(experts, self._clock))

    def forget(self, layer: int, expert: int) -> None:
        del self._last_use[layer][expert]

    def victim(self, layers: Sequence[int], evictable: Evictable) -> tuple[int, int] | None:
        best: tuple[int, int] | None = None
        best_use = self._clock + 1
        for layer in layers:
            for expert, last_use in self._last_use.get(layer, {}).items():
                if last_use >= best_use:
                    break
                if evictable(layer, expert):
                    best, best_use = (layer, expert), last_use
                    break
        return best
