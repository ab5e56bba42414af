"""OffloadedBank: an ExpertBank whose experts live in files and visit a bounded number of slots.

Shapes: T rows, D hidden, K experts a row.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch

from smoe.core.errors import ConfigError
from smoe.core.stats import ExpertStats
from smoe.kernels import moe_combine
from smoe.models.bank import Lookahead, RoutedRows, Substitutions
from smoe.offload.arena import Arena
from smoe.offload.cache import Residency
from smoe.offload.copies import CopyEngine
from smoe.offload.costs import MeasuredCosts
from smoe.offload.drafted import PlanOrder
from smoe.offload.flow import Flow
from smoe.offload.in_place import InPlace
from smoe.offload.link_rate import LinkRate
from smoe.offload.outputs import Outputs
from smoe.offload.planner import Planner
from smoe.offload.policies.protocols import Costs, Key, PolicySet
from smoe.offload.pools import SecondCore
from smoe.offload.routings import Routings
from smoe.offload.shelf import Shelf
from smoe.offload.store import Store
from smoe.offload.transfer import Transfers
from smoe.offload.waves import Waves


class OffloadedBank:
    """Bit-equal to ResidentBank for every number of slots and every lossless policy: each expert's output goes to its
    own place of a buffer, which is summed in ascending expert id whatever the order of arrival.

    Misses are waited for, or computed where they are, after the hits. A StoreError ends one `apply`; the next one
    works. A prefetch that fails is forgotten, and its expert read again if it is asked for.
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
        copies: CopyEngine | None = None,
        beside: SecondCore | None = None,
        plan_order: PlanOrder = "deadline",
        max_planned: int | None = None,
        rolling: int | None = None,
        poison: bool = False,
    ) -> None:
        """`num_slots` over all layers, of which `floor` >= 1 are safe for each. Closes `store` when closed.
        `resize` can go up to `max_slots` (default: no further): addresses are reserved, memory is taken as it is used.

        `max_background`, `pause_share`, `plan_order`, `max_planned` and `rolling` as Planner has them. `in_place` is
        needed by miss policies that compute there; what they compare is measured, unless `costs` says it. `copies`, of
        a store whose copies into slots may overtake what computes from them, hears when a slot has been used for the
        last time. `beside` computes what is computed in place while all else of a layer goes on, instead of between; it
        is not closed. `poison` fills slots and outputs that hold nothing yet with NaN.
        """
        spec = shelf.spec
        self._layers = spec.moe_layers
        self._fixed_bytes = shelf.staging_bytes
        max_slots = num_slots if max_slots is None else max_slots
        self._arena = Arena(max_slots, shelf.slot_bytes, poison=poison)
        self._residency = Residency(num_slots, spec.moe_layers, policies.eviction, floor=floor, max_slots=max_slots)
        self._in_place, self._costs = in_place, MeasuredCosts()
        self._planner = Planner(
            self._residency,
            policies,
            spec.moe_layers,
            max_background=max_background,
            pause_share=pause_share,
            hold=None if in_place is None else in_place.hold,
            costs=self._costs if costs is None else costs,
            plan_order=plan_order,
            max_planned=max_planned,
            rolling=rolling,
        )
        self._slot_bytes, self._rate = shelf.slot_bytes, LinkRate()
        self._routings = Routings(self._planner, ids_alone=policies.prefetch is None and not policies.miss.lossy)
        self._store, self._transfers = store, Transfers(shelf, store, self._arena)
        self._outputs = Outputs(spec, max_slots, poison=poison)
        self._flow = Flow(self._planner, self._residency, self._transfers, self._outputs, self._arena)
        measures = policies.miss.computes and costs is None
        self._waves = Waves(
            self._flow,
            self._residency,
            self._outputs,
            store,
            measured=self._costs if measures else None,
            in_place=in_place,
            copies=copies,
            beside=beside,
        )

    @property
    def needs_logits(self) -> bool:
        return self._planner.needs_logits

    def use_lookahead(self, lookahead: Lookahead) -> None:
        self._routings.lookahead = lookahead

    def begin_forward(self, token_ids_T: torch.Tensor) -> None:
        self._routings.begin_forward(token_ids_T)
        self._planner.begin_forward()

    def substitutions(self) -> Substitutions | None:
        return self._routings.substitutions

    def apply(self, rows: RoutedRows, residual_TD: torch.Tensor) -> torch.Tensor:
        return self.apply_beside(rows, lambda: residual_TD)

    def apply_beside(self, rows: RoutedRows, residual: Callable[[], torch.Tensor]) -> torch.Tensor:
        """`residual` is called once the misses are on their way."""
        flow = self._flow
        flow.poll()
        run = self._planner.begin_pass(*self._routings.of(rows))
        if run is None:
            out_TD = self._outputs.fused(rows, residual())
            self._waves.used(self._outputs.slots(rows.layer, rows.ids_TK.numpy()))
            return out_TD
        try:
            if run.decision is not None:
                rows = self._routings.replace(rows, run.decision)
            for view in run.late:
                self._transfers.promote(view)
            flow.take_back(run.stale)
            flow.begin(run.start())
            residual_TD = residual()
            if run.fused:
                out_TD = self._outputs.fused(rows, residual_TD)
                self._waves.used([view.slot for view in run.hits])
                flow.begin(run.retire_hits())
                return out_TD
            pairs_TKD = self._waves.run(run, rows.x_TD, rows.ids_TK)
        except BaseException:
            if self._in_place is not None:
                self._in_place.release()
            flow.abandon(run)
            raise
        return moe_combine(pairs_TKD, rows.ids_TK, rows.weights_TK, rows.x_TD.dtype, residual=residual_TD)

    def compute_hits_first(self, first: bool) -> None:
        """From the next pass on; by default they are (see Waves)."""
        self._waves.hits_first = first

    @property
    def slots_a_layer(self) -> int:
        return self._residency.num_slots // len(self._layers)

    @property
    def bytes_per_second(self) -> float:
        stats = self._store.stats()
        # In bytes of slots, as `prefetch` counts them: of residuals fewer are read than come to lie there.
        return self._rate.update(stats.reads * self._slot_bytes, stats.busy_s)

    def prefetch(self, keys: Sequence[Key]) -> int:
        planner, before = self._planner, self._planner.submitted
        self._flow.poll()
        self._flow.take_back(planner.foretell(keys))
        self._flow.begin(planner.start())
        return (planner.submitted - before) * self._slot_bytes

    def poll(self) -> None:
        self._flow.poll()
        self._flow.begin(self._planner.more())

    def resident(self) -> Collection[Key]:
        return {(layer, expert) for layer in self._layers for expert in self._residency.resident(layer)}

    def stats(self) -> ExpertStats:
        cache, store = self._residency, self._store.stats()
        return replace(
            store.added_to(self._planner.stats()),
            wait_s=self._transfers.wait_s,
            budget_bytes=self._fixed_bytes + store.budget_bytes + cache.num_slots * self._slot_bytes,
            peak_bytes=self._fixed_bytes + store.peak_bytes + cache.peak_used * self._slot_bytes,
        )

    def resize(self, num_slots: int) -> None:
        """Between forwards: from now on `num_slots` over all layers in equal floors. Slots given up free their memory.

        Raises ConfigError below one a layer and above `max_slots`; then nothing has changed.
        """
        fewest, most = len(self._layers), self._residency.max_slots
        if not fewest <= num_slots <= most:
            raise ConfigError("num_slots", num_slots, f"from {fewest}, one a layer, up to {most}")
        self._flow.stop()
        for slot in self._residency.resize(num_slots, floor=num_slots // len(self._layers)):
            self._arena.release(slot)

    def refill(self, keys: Sequence[Key]) -> None:
        """Between forwards: `keys`, no more than there are slots, become resident, brought in in this order. If they
        fill all slots, what follows does not depend on what ran before. Waits; what cannot be read is left out.
        """
        num_slots = self._residency.num_slots
        self.resize(len(self._layers))
        self.resize(num_slots)
        self.prefetch(keys)
        self._flow.finish()

    def check_integrity(self) -> None:
        self._residency.check_idle()
        for layer in self._layers:
            self._outputs.check(layer, self._residency.resident(layer))
        self._flow.check_integrity()

    def close(self) -> None:
        self._transfers.close()
        self._store.close()
        self._outputs.close()
        self._arena.close()
