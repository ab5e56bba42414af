"""Utility: how likely an expert is to be asked for, smoothed over passes (spec P3.1 c, adapted)."""

from collections.abc import Sequence

from smoe.offload.policies.demand import gate_mass, requests
from smoe.offload.policies.protocols import Evictable, Key, Reason, Routing
from smoe.offload.policies.valued import Valued

SMOOTHING = 0.1


class Utility(Valued):
    """Evicts from the layer that has just run, whose next turn is farthest away, the expert of least utility, if that
    is below `floor`; else the expert of least utility anywhere.

    Utility U is moved at every epoch: U <- (1 - smoothing) U + smoothing c, where c is the share of the pass's rows
    that chose the expert (signal "count"), or top_k times its mean gate weight ("mass", same scale).

    MoE-SpAc keeps U as an integer 0..5, moved one step a verification window by window counts (UtilityLevels). A count
    in a decode pass is 0 or 1, which could never raise that integer, hence smoothing; "the layer just passed first,
    then by utility, spare what is worth tau" is kept.
    """

    def __init__(
        self,
        *,
        top_k: int,
        num_experts: int,
        smoothing: float = SMOOTHING,
        signal: str = "count",
        floor: float | None = None,
    ) -> None:
        """`floor` None: top_k / num_experts, the utility of an expert that is as good as any."""
        super().__init__(decay=1 / (1 - smoothing))
        self._top_k, self._smoothing, self._by_mass = top_k, smoothing, signal == "mass"
        self._floor = top_k / num_experts if floor is None else floor
        self._layer = -1

    def begin_epoch(self) -> None:
        self._decay()

    def begin_layer(self, layer: int) -> None:
        self._layer = layer

    def demand(self, routing: Routing) -> None:
        scale = self._smoothing / len(routing.ids)
        if self._by_mass:
            self._add(routing.layer, gate_mass(routing), scale * self._top_k)
        else:
            self._add(routing.layer, requests(routing), scale)

    def victim(self, layers: Sequence[int], evictable: Evictable, wanted: Key, reason: Reason) -> Key | None:
        if self._layer in layers and len(layers) > 1:
            entry = self._heap.first_entry((self._layer,), evictable)
            if entry is not None and entry[0][0] < self._floor * self._unit:
                return entry[1]
        return self._heap.first(layers, evictable)
