"""Floors: how many slots each layer holds, and what the others owe it. Torch-free.

Every layer can always hold `floor` slots: free slots that layers below it have not taken yet are owed to them, and a
layer at its floor loses a slot only to itself. What lies above the floors is shared.
"""

from collections.abc import Sequence


class Floors:
    """`owed` are the slots that layers lack to their floor."""

    def __init__(self, layers: Sequence[int], floor: int) -> None:
        self.floor = floor
        self.owed = floor * len(layers)
        self._held = dict.fromkeys(layers, 0)
        self._may_lose: dict[int, list[int]] = {}  # by layer that wants a slot

    @property
    def held(self) -> dict[int, int]:
        """layer -> slots; a copy."""
        return dict(self._held)

    def add(self, layer: int, change: int) -> None:
        """`change` is 1 or -1."""
        after = self._held[layer] + change
        self._held[layer] = after
        most = after if change > 0 else after + 1
        if most <= self.floor:
            self.owed -= change
        elif most == self.floor + 1:
            self._may_lose.clear()

    def may_take_free(self, layer: int, num_free: int) -> bool:
        """Whether a free slot is left for the layer beside those owed to others."""
        return num_free > self.owed - max(0, self.floor - self._held[layer])

    def may_lose_to(self, layer: int) -> list[int]:
        """Layers that may lose a slot to it, itself among them."""
        found = self._may_lose.get(layer)
        if found is None:
            found = [other for other, held in self._held.items() if other == layer or held > self.floor]
            self._may_lose[layer] = found
        return found

    def above(self) -> list[int]:
        """Layers that hold more than their floor."""
        return [layer for layer, held in self._held.items() if held > self.floor]

    def move(self, floor: int) -> None:
        self.floor = floor
        self.owed = sum(max(0, floor - held) for held in self._held.values())
        self._may_lose.clear()

    def problems(self, held: dict[int, int], num_free: int) -> list[str]:
        """What does not hold, where layers are known to hold so many slots."""
        found = []
        if any(held.get(layer, 0) != count for layer, count in self._held.items()):
            found.append("slots held by layers are miscounted")
        owed = sum(max(0, self.floor - count) for count in self._held.values())
        if owed != self.owed or owed > num_free:
            found.append("floors of layers are not covered by free slots")
        return found


def check_floor(floor: int, num_slots: int, num_layers: int) -> None:
    """Raises ValueError."""
    if not 1 <= floor <= num_slots // num_layers:
        raise ValueError(f"floor: {floor} (1 up to {num_slots} slots / {num_layers} layers)")
