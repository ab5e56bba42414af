"""Background admission: experts that are substituted, or computed in place, too much are loaded after all (spec P4;
P3 keeps the hot experts in slots and computes the cold ones where they are)."""

from collections import defaultdict
from collections.abc import Sequence

from smoe.offload.policies.protocols import Eviction, Key, Reason


class Background:
    """Loads an expert, without waiting, when the gate mass that bypassed it reaches `beta`.

    The sum starts again when it has asked for the load, and whenever the expert gets or loses a slot.
    """

    def __init__(self, beta: float = 0.5) -> None:
        self._beta = beta
        self._mass: defaultdict[Key, float] = defaultdict(float)

    def bypassed(self, layer: int, experts: Sequence[int], mass: Sequence[float]) -> Sequence[Key]:
        load = []
        for expert, amount in zip(experts, mass, strict=True):
            key = (layer, expert)
            self._mass[key] += amount
            if self._mass[key] >= self._beta:
                load.append(key)
                del self._mass[key]
        return load

    def reset(self, layer: int, expert: int) -> None:
        self._mass.pop((layer, expert), None)


class Resetting:
    """An eviction policy that also tells a background admission of slots got and lost."""

    def __init__(self, eviction: Eviction, admission: Background) -> None:
        self._eviction, self._admission = eviction, admission
        self.begin_epoch = eviction.begin_epoch
        self.begin_layer = eviction.begin_layer
        self.touch = eviction.touch
        self.demand = eviction.demand
        self.confirm = eviction.confirm
        self.victim = eviction.victim

    def admit(self, layer: int, expert: int, reason: Reason) -> None:
        self._eviction.admit(layer, expert, reason)
        self._admission.reset(layer, expert)

    def forget(self, layer: int, expert: int) -> None:
        self._eviction.forget(layer, expert)
        self._admission.reset(layer, expert)
