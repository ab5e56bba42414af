"""Sums that all decay together, at no cost for those that nothing is added to."""

from collections.abc import Mapping

from smoe.offload.policies.protocols import Key

LARGEST = 2.0**500


class Decaying:
    """`decay` divides every value by `factor`. Instead of that, what is added from then on counts `factor` times as
    much: the order of values is the same, and a heap of them needs no repair. Values are in units of `unit`.
    """

    def __init__(self, factor: float) -> None:
        self.unit = 1.0
        self._factor = factor
        self._values: dict[Key, float] = {}

    def decay(self) -> bool:
        """True when values had to be scaled back into range: then all have fallen."""
        self.unit *= self._factor
        if self.unit < LARGEST:
            return False
        self._values = {key: value / self.unit for key, value in self._values.items()}
        self.unit = 1.0
        return True

    def add(self, layer: int, amounts: Mapping[int, float]) -> None:
        values, unit = self._values, self.unit
        for expert, amount in amounts.items():
            key = (layer, expert)
            values[key] = values.get(key, 0.0) + amount * unit

    def value(self, key: Key) -> float:
        return self._values.get(key, 0.0)
