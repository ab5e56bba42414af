"""OffloadedBank: an ExpertBank whose experts live in files and visit a bounded number of slots.

Shapes: T rows, D hidden, K experts a row.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from smoe.core.errors import ConfigError
from smoe.core.stats import ExpertStats
from smoe.kernels import ExpertTable, moe, moe_combine, moe_pairs
from smoe.models.bank import Lookahead, Substitutions, expert_table
from smoe.models.spec import MoESpec
from smoe.offload.arena import POISON_BYTE, Arena
from smoe.offload.cache import Residency, View
from smoe.offload.costs import MeasuredCosts
from smoe.offload.in_place import InPlace
from smoe.offload.layer_pass import LayerPass
from smoe.offload.planner import PlannedPass, Planner
from smoe.offload.policies.protocols import Array, Costs, MissDecision, PolicySet, Routing
from smoe.offload.shelf import Shelf
from smoe.offload.store import LinkStats, Store
from smoe.offload.transfer import Arrival, Transfers

Ids = npt.NDArray[np.int32]


class OffloadedBank:
    """Bit-equal to ResidentBank for every number of slots and every lossless policy: each expert's output goes to its
    own place of a buffer, which is summed in ascending expert id whatever the order of arrival.

    Misses are waited for, while the hits are computed. A StoreError ends one `apply`; the next one works. A prefetch
    that fails is forgotten, and its expert read again if it is asked for.
    """

    def __init__(
        self,
        shelf: Shelf,
        store: Store,
        policies: PolicySet,
        *,
        num_slots: int,
        floor: int,
        max_slots: int | None = None,
        max_background: int | None = None,
        pause_share: float | None = None,
        in_place: InPlace | None = None,
        costs: Costs | None = None,
        poison: bool = False,
    ) -> None:
        """`num_slots` over all layers, of which `floor` >= 1 are safe for each. Closes `store` when closed.
        `resize` can go up to `max_slots` (default: no further): addresses are reserved, memory is taken as it is used.

        `max_background` and `pause_share` as Planner has them. `in_place` is needed by miss policies that compute
        there; what they compare is measured, unless `costs` says it. `poison` fills slots and outputs that hold
        nothing yet with NaN.
        """
        spec = shelf.spec
        self._fixed_bytes = shelf.staging_bytes
        max_slots = num_slots if max_slots is None else max_slots
        self._arena = Arena(max_slots, shelf.slot_bytes, poison=poison)
        self._residency = Residency(num_slots, spec.moe_layers, policies.eviction, floor=floor, max_slots=max_slots)
        self._in_place, self._costs = in_place, MeasuredCosts()
        self._measures = policies.miss.computes and costs is None
        self._planner = Planner(
            self._residency,
            policies,
            spec.moe_layers,
            max_background=max_background,
            pause_share=pause_share,
            hold=None if in_place is None else in_place.hold,
            costs=self._costs if costs is None else costs,
        )
        # Order within a row is of no consequence to the sum; only these policies go by it (and by anything but ids).
        self._sorts = policies.miss.lossy or policies.prefetch is not None
        self._lookahead: Lookahead | None = None
        self._token_ids: Array | None = None
        self._replaced: tuple[Array, Array] | None = None
        self._store, self._transfers = store, Transfers(shelf, store, self._arena)
        self._num_experts = {layer: spec.moe(layer).router.num_experts for layer in spec.moe_layers}
        # Right for resident experts only: whoever reads it asks the residency first.
        self._expert2slot = {layer: np.full(n, -1, dtype=np.int32) for layer, n in self._num_experts.items()}
        by_geometry: dict[MoESpec, ExpertTable] = {}
        self._tables: dict[int, ExpertTable] = {}
        for layer in spec.moe_layers:
            moe_spec = spec.moe(layer)
            if moe_spec not in by_geometry:
                by_geometry[moe_spec] = expert_table(moe_spec, spec.hidden, max_slots)
            self._tables[layer] = by_geometry[moe_spec]
        self._poison, self._scratch = poison, torch.empty(0)

    @property
    def needs_logits(self) -> bool:
        return self._planner.needs_logits

    def use_lookahead(self, lookahead: Lookahead) -> None:
        self._lookahead = lookahead

    def begin_forward(self, token_ids_T: torch.Tensor) -> None:
        self._token_ids = token_ids_T.numpy()
        self._replaced = None
        self._planner.begin_forward()

    def substitutions(self) -> Substitutions | None:
        return None if self._replaced is None else Substitutions(*self._replaced)

    def apply(
        self,
        layer: int,
        x_TD: torch.Tensor,
        ids_TK: torch.Tensor,
        weights_TK: torch.Tensor,
        residual_TD: torch.Tensor,
        logits_TE: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if self._transfers.pending:
            self._deliver(self._transfers.poll())
        run = self._planner.begin_pass(*self._ask(layer, x_TD, ids_TK, weights_TK, logits_TE))
        if run is None:
            return self._fused(layer, x_TD, ids_TK, weights_TK, residual_TD)
        try:
            if run.decision is not None:
                ids_TK, weights_TK = self._replace(run.decision)
            for view in run.late:
                self._transfers.promote(view)
            for view in run.stale:
                if self._transfers.try_cancel(view):
                    self._planner.cancelled(view)
            self._begin(run.start())
            if run.fused:
                out_TD = self._fused(layer, x_TD, ids_TK, weights_TK, residual_TD)
                self._begin(run.retire_hits())
                return out_TD
            pairs_TKD = self._compute_in_waves(run, layer, x_TD, ids_TK.numpy())
        except BaseException:
            self._abandon(run)
            raise
        return moe_combine(pairs_TKD, ids_TK, weights_TK, x_TD.dtype, residual=residual_TD)

    def stats(self) -> ExpertStats:
        cache, store = self._residency, self._store.stats()
        links = {link.name: link for link in store.links}
        nothing = LinkStats(name="", transfers=0, nbytes=0, busy_s=0.0)
        disk, host = links.get("disk", nothing), links.get("host", nothing)
        return replace(
            self._planner.stats(),
            bytes_moved=store.bytes_read,
            wait_s=self._transfers.wait_s,
            transfer_s=store.busy_s,
            disk_transfers=disk.transfers,
            disk_bytes=disk.nbytes,
            disk_s=disk.busy_s,
            host_transfers=host.transfers,
            host_bytes=host.nbytes,
            host_s=host.busy_s,
            budget_bytes=self._fixed_bytes + store.budget_bytes + cache.num_slots * self._arena.slot_bytes,
            peak_bytes=self._fixed_bytes + store.peak_bytes + cache.peak_used * self._arena.slot_bytes,
        )

    def resize(self, num_slots: int) -> None:
        """Between forwards: from now on `num_slots` over all layers in equal floors. Slots given up free their memory.

        Raises ConfigError below one a layer and above `max_slots`; then nothing has changed.
        """
        fewest, most = len(self._num_experts), self._residency.max_slots
        if not fewest <= num_slots <= most:
            raise ConfigError("num_slots", num_slots, f"from {fewest}, one a layer, up to {most}")
        for view in self._residency.background():
            if self._transfers.try_cancel(view):
                self._planner.failed(view)
        while self._transfers.pending:
            self._deliver(self._transfers.take())
        for slot in self._residency.resize(num_slots, floor=num_slots // len(self._num_experts)):
            self._arena.release(slot)

    def check_integrity(self) -> None:
        self._residency.check_idle()
        for layer, expert2slot in self._expert2slot.items():
            resident = self._residency.resident(layer)
            if any(expert2slot[expert] != slot for expert, slot in resident.items()):
                raise RuntimeError(f"expert slots of layer {layer} differ from the residency")
        begun, reserved = self._transfers.pending, self._residency.background_in_flight
        if begun != reserved:
            raise RuntimeError(f"expert transfers: {begun} under way for {reserved} slots")

    def close(self) -> None:
        self._transfers.close()
        self._store.close()
        self._tables.clear()
        self._arena.close()

    def _ask(
        self,
        layer: int,
        x_TD: torch.Tensor,
        ids_TK: torch.Tensor,
        weights_TK: torch.Tensor,
        logits_TE: torch.Tensor | None,
    ) -> tuple[Routing, Array | None]:
        """The routing of a pass as policies see it, and the look-ahead if they want one."""
        ids, weights = ids_TK.numpy(), weights_TK.numpy()
        if not self._sorts:
            return Routing(layer=layer, ids=ids, weights=weights, token_ids=self._token_ids), None
        ids, weights = _descending(ids, weights)
        logits = logits_TE.numpy() if logits_TE is not None and self._planner.needs_logits else None
        lookahead = None
        if self._lookahead is not None and self._planner.wants_lookahead(layer):
            lookahead = self._lookahead(layer, x_TD).numpy()
        routing = Routing(layer=layer, ids=ids, weights=weights, logits=logits, token_ids=self._token_ids)
        return routing, lookahead

    def _replace(self, decision: MissDecision) -> tuple[torch.Tensor, torch.Tensor]:
        """What the decision computes, its substitutions noted by row."""
        assert decision.substituted is not None
        assert decision.mass is not None
        slots, mass = decision.substituted, decision.mass
        if self._replaced is not None:
            slots, mass = self._replaced[0] + slots, self._replaced[1] + mass
        self._replaced = (slots, mass)
        ids = np.ascontiguousarray(decision.ids, dtype=np.int32)
        return torch.from_numpy(ids), torch.from_numpy(np.ascontiguousarray(decision.weights, dtype=np.float32))

    def _fused(
        self,
        layer: int,
        x_TD: torch.Tensor,
        ids_TK: torch.Tensor,
        weights_TK: torch.Tensor,
        residual_TD: torch.Tensor,
    ) -> torch.Tensor:
        """All experts are resident."""
        slots_TK = torch.from_numpy(self._expert2slot[layer].take(ids_TK.numpy()))
        return moe(x_TD, slots_TK, ids_TK, weights_TK, self._tables[layer], residual=residual_TD)

    def _compute_in_waves(self, run: PlannedPass, layer: int, x_TD: torch.Tensor, ids: Ids) -> torch.Tensor:
        pairs_TKD = self._pairs(ids.shape[0], ids.shape[1], x_TD.shape[1])
        if run.hits:
            self._compute(layer, x_TD, ids, run.hits, pairs_TKD)
        self._begin(run.retire_hits())
        if run.in_place:
            self._compute_in_place(layer, x_TD, ids, run.in_place, pairs_TKD)
        link_before = self._store.stats() if self._measures and run.unfinished else None
        while run.unfinished:
            views = self._take(run)
            self._compute(layer, x_TD, ids, views, pairs_TKD)
            self._begin(run.retire(views))
        if link_before is not None:
            link = self._store.stats()
            self._costs.fetched(link.reads - link_before.reads, link.busy_s - link_before.busy_s)
        return pairs_TKD

    def _compute_in_place(
        self, layer: int, x_TD: torch.Tensor, ids: Ids, experts: Sequence[int], pairs_TKD: torch.Tensor
    ) -> None:
        """The outputs of experts that are held for it, which ends here, each to its place."""
        assert self._in_place is not None
        started = time.perf_counter()
        expert2slot = np.full(self._num_experts[layer], -1, dtype=np.int32)
        expert2slot[experts] = self._in_place.expert2slot(layer)[experts]
        slots_TK = expert2slot.take(ids)
        moe_pairs(x_TD, torch.from_numpy(slots_TK), self._in_place.table(layer), pairs_TKD)
        self._in_place.release()
        if self._measures:
            self._costs.computed(len(experts), int((slots_TK >= 0).sum()), time.perf_counter() - started)

    def _begin(self, views: Sequence[View]) -> None:
        for view in views:
            self._transfers.begin([view], self._planner.deadline(view))

    def _take(self, run: LayerPass) -> list[View]:
        """Views of the pass that have arrived, in the tables. Raises the first error, after noting all arrivals."""
        views, errors, others = [], [], []
        for arrival in self._transfers.take():
            view, tensors, error = arrival
            if not run.awaits(view):
                others.append(arrival)
            elif tensors is not None:
                self._install(arrival)
                run.arrived(view)
                views.append(view)
            elif run.forgives(view):
                self._begin(run.failed(view))
            else:
                errors.append(error)
        for error in errors:
            assert error is not None
            raise error
        if others:
            self._deliver(others)
            self._begin(run.resume())
        return views

    def _deliver(self, arrivals: Sequence[Arrival]) -> None:
        """Transfers that no pass waits for."""
        for arrival in arrivals:
            if arrival.tensors is None:
                self._planner.failed(arrival.view)
            else:
                self._install(arrival)
                self._planner.arrived(arrival.view)

    def _install(self, arrival: Arrival) -> None:
        view = arrival.view
        assert arrival.tensors is not None
        self._tables[view.layer].set(view.slot, arrival.tensors)
        self._expert2slot[view.layer][view.expert] = view.slot

    def _abandon(self, run: LayerPass) -> None:
        """Ends all transfers, also those of other layers: what is left over of this pass may be any state."""
        if self._in_place is not None:
            self._in_place.release()
        background = self._residency.background()
        for view in background:
            self._transfers.try_cancel(view)
        while self._transfers.pending:
            self._transfers.take()
        for view in background:
            self._planner.failed(view)
        for view in (*background, *run.abandon()):
            self._arena.poison(view.slot)

    def _compute(
        self, layer: int, x_TD: torch.Tensor, ids: Ids, views: Sequence[View], pairs_TKD: torch.Tensor
    ) -> None:
        """The outputs of the views' experts, each to its place."""
        expert2slot = np.full(self._num_experts[layer], -1, dtype=np.int32)
        for view in views:
            self._residency.check(view)
            expert2slot[view.expert] = view.slot
        moe_pairs(x_TD, torch.from_numpy(expert2slot.take(ids)), self._tables[layer], pairs_TKD)

    def _pairs(self, rows: int, choices: int, hidden: int) -> torch.Tensor:
        """[T, K, D] f32 with arbitrary contents. One allocation, kept: its size is the largest batch's."""
        wanted = rows * choices * hidden
        if self._scratch.numel() < wanted:
            self._scratch = torch.empty(wanted)
        pairs = self._scratch[:wanted].view(rows, choices, hidden)
        if self._poison:
            pairs.view(torch.uint8).fill_(POISON_BYTE)
        return pairs


def _descending(ids: Ids, weights: Array) -> tuple[Ids, Array]:
    """Both [T, K], each row by weight."""
    if len(ids) == 1:  # what decoding asks for all the time
        order = np.argsort(-weights[0], kind="stable")
        return ids[:, order], weights[:, order]
    order = np.argsort(-weights, axis=1, kind="stable")
    return np.take_along_axis(ids, order, 1), np.take_along_axis(weights, order, 1)
