"""Least-Stale (SpecMD; spec P5): what this epoch has not used or prefetched goes before what it has.

A demand use, an admission or a confirmed prefetch makes an expert *current*; `begin_epoch` makes all *stale*. The
victim is a stale expert as long as one can go. The paper's rule inside a group cannot be read, so there are four.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence

from smoe.offload.policies.base import Deaf
from smoe.offload.policies.order import FEW_LAYERS, Queue
from smoe.offload.policies.protocols import Evictable, Key, Reason


class LeastStaleFIFO(Deaf):
    """Inside a group, the first to have got its slot; using or confirming it does not change its place."""

    def __init__(self) -> None:
        self._epoch = 0
        self._made_current: dict[Key, int] = {}
        self._arrivals = Queue()
        # By layer, and under None for all: those stale when the epoch first asked, in order of arrival, less what was
        # found to be current or gone, which cannot become stale again before the next epoch.
        self._stale: dict[int | None, deque[Key]] = {}

    def begin_epoch(self) -> None:
        self._epoch += 1
        self._stale.clear()

    def admit(self, layer: int, expert: int, reason: Reason) -> None:
        self._made_current[layer, expert] = self._epoch
        self._arrivals.push(layer, expert)

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        for expert in experts:
            self._made_current[layer, expert] = self._epoch

    confirm = touch

    def forget(self, layer: int, expert: int) -> None:
        del self._made_current[layer, expert]
        self._arrivals.remove(layer, expert)

    def victim(self, layers: Sequence[int], evictable: Evictable, wanted: Key, reason: Reason) -> Key | None:
        if len(layers) > FEW_LAYERS:
            stale = self._first_stale(None, layers, evictable)
        else:
            heads = [self._first_stale(layer, layers, evictable) for layer in layers]
            stale = self._arrivals.earliest([key for key in heads if key is not None])
        return self._arrivals.first(layers, evictable) if stale is None else stale

    def _first_stale(self, which: int | None, layers: Sequence[int], evictable: Evictable) -> Key | None:
        if which not in self._stale:
            self._stale[which] = deque(self._arrivals.keys(which))
        queue, aside, found = self._stale[which], [], None
        while queue:
            key = queue[0]
            if self._made_current.get(key, self._epoch) == self._epoch:
                queue.popleft()
            elif key[0] in layers and evictable(*key):
                found = key
                break
            else:
                aside.append(queue.popleft())
        queue.extendleft(reversed(aside))
        return found


class LeastStaleByLayer(Deaf):
    """Inside a group, layer by layer in an order that may depend on the layer that runs; inside a layer, the one made
    current longest ago. `layers` are the MoE layers; L is their number, and a layer means its index among them.

    "layer"      0, 1, .. L-1
    "cyclic"     farthest from its next turn first, (layer - running - 1) mod L: running, running-1, .. 0, L-1, ..
                 running+1. What Belady would do if every layer used each of its experts once an epoch.
    "four-tier"  (stale, passed), (stale, ahead), (current, passed), (current, ahead); the running layer has passed.
                 In a tier the farthest by |layer - running| first: 0, 1, .. running, then L-1, .. running+1. (With
                 cyclic distances the tiers would be the order of "cyclic" again.)
    """

    def __init__(self, layers: Sequence[int], order: str = "cyclic") -> None:
        self._orders = {layer: [layers[i] for i in _order(order, at, len(layers))] for at, layer in enumerate(layers)}
        self._order = self._orders[layers[-1]]
        self._stale: dict[int, OrderedDict[int, None]] = {layer: OrderedDict() for layer in layers}
        self._current: dict[int, OrderedDict[int, None]] = {layer: OrderedDict() for layer in layers}

    def begin_epoch(self) -> None:
        for layer, current in self._current.items():
            self._stale[layer].update(current)
            current.clear()

    def begin_layer(self, layer: int) -> None:
        self._order = self._orders[layer]

    def admit(self, layer: int, expert: int, reason: Reason) -> None:
        self._current[layer][expert] = None

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        stale, current = self._stale[layer], self._current[layer]
        for expert in experts:
            stale.pop(expert, None)
            current[expert] = None
            current.move_to_end(expert)

    confirm = touch

    def forget(self, layer: int, expert: int) -> None:
        group = self._current if expert in self._current[layer] else self._stale
        del group[layer][expert]

    def victim(self, layers: Sequence[int], evictable: Evictable, wanted: Key, reason: Reason) -> Key | None:
        order = layers if len(layers) == 1 else self._order
        for group in (self._stale, self._current):
            for layer in order:
                if group[layer] and layer in layers:
                    for expert in group[layer]:
                        if evictable(layer, expert):
                            return layer, expert
        return None


def _order(name: str, running: int, num_layers: int) -> list[int]:
    everyone = range(num_layers)
    if name == "layer":
        return list(everyone)
    if name == "cyclic":
        return sorted(everyone, key=lambda layer: -((layer - running - 1) % num_layers))
    return sorted(everyone, key=lambda layer: (layer > running, -abs(layer - running)))
