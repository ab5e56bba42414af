"""Utility: how likely an expert is to be asked for, smoothed over windows (spec P3.1 c, adapted)."""

from collections.abc import Sequence

from smoe.offload.policies.base import Deaf
from smoe.offload.policies.decay import Decaying
from smoe.offload.policies.demand import gate_mass, requests
from smoe.offload.policies.order import Heap
from smoe.offload.policies.protocols import Evictable, Key, Reason, Routing


class Utility(Deaf):
    """Evicts from the layer that has just run, whose next turn is farthest away, the expert of least utility, if that
    is below `floor`; else the expert of least utility anywhere. Of equal ones the one used, or arrived, first.

    Utility U is moved at every epoch: U <- (1 - smoothing) U + smoothing c, where c is the share of the pass's rows
    that chose the expert (signal "count"), or top_k times its mean gate weight ("mass", same scale).

    MoE-SpAc keeps U as an integer 0..5, moved one step a verification window by window counts, drops a layer's
    residents to 0 when it has run and takes a victim only below tau. A count in a decode pass is 0 or 1, which could
    never raise that integer, hence smoothing; "the layer just passed first, then by utility, spare what is worth
    tau" is kept.
    """

    def __init__(
        self, *, top_k: int, num_experts: int, smoothing: float = 0.1, signal: str = "count", floor: float | None = None
    ) -> None:
        """`floor` None: top_k / num_experts, the utility of an expert that is as good as any."""
        self._top_k, self._smoothing, self._by_mass = top_k, smoothing, signal == "mass"
        self._floor = top_k / num_experts if floor is None else floor
        self._utility = Decaying(1 / (1 - smoothing))
        self._clock, self._layer = 0, -1
        self._last_use: dict[Key, int] = {}
        self._heap = Heap(lambda key: (self._utility.value(key), self._last_use[key]))

    def begin_epoch(self) -> None:
        if self._utility.decay():
            self._heap.rebuild()

    def begin_layer(self, layer: int) -> None:
        self._layer = layer

    def demand(self, routing: Routing) -> None:
        rows = len(routing.ids)
        amounts = gate_mass(routing) if self._by_mass else requests(routing)
        scale = self._smoothing * (self._top_k if self._by_mass else 1) / rows
        self._utility.add(routing.layer, {expert: amount * scale for expert, amount in amounts.items()})

    def admit(self, layer: int, expert: int, reason: Reason) -> None:
        self._clock += 1
        self._last_use[layer, expert] = self._clock
        self._heap.push((layer, expert))

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        for expert in experts:
            self._clock += 1
            self._last_use[layer, expert] = self._clock

    def forget(self, layer: int, expert: int) -> None:
        self._heap.remove((layer, expert))
        del self._last_use[layer, expert]

    def victim(self, layers: Sequence[int], evictable: Evictable, wanted: Key, reason: Reason) -> Key | None:
        if self._layer in layers:
            entry = self._heap.first_entry((self._layer,), evictable)
            if entry is not None and entry[0][0] < self._floor * self._utility.unit:
                return entry[1]
        return self._heap.first(layers, evictable)
