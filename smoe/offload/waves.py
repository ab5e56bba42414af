"""One pass computed as its experts come: hits first, then what is computed in place, then each arrival.

Shapes: T rows, D hidden, K experts a row.
"""

import time
from collections.abc import Sequence

import numpy as np
import torch

from smoe.offload.cache import Residency
from smoe.offload.copies import CopyEngine
from smoe.offload.costs import MeasuredCosts
from smoe.offload.flow import Flow
from smoe.offload.in_place import InPlace
from smoe.offload.outputs import Ids, Outputs
from smoe.offload.planner import PlannedPass
from smoe.offload.pools import SecondCore
from smoe.offload.slots import View
from smoe.offload.store import Store


class Waves:
    """`measured`, if given, hears what computing and fetching take. The rest as OffloadedBank has it.

    Without `hits_first` nothing is computed before the misses that have slots have come: what computing hides else is
    then waited for.
    """

    def __init__(
        self,
        flow: Flow,
        residency: Residency,
        outputs: Outputs,
        store: Store,
        *,
        measured: MeasuredCosts | None,
        in_place: InPlace | None,
        copies: CopyEngine | None,
        beside: SecondCore | None,
    ) -> None:
        self._flow, self._residency, self._outputs, self._store = flow, residency, outputs, store
        self._measured, self._in_place, self._copies, self._beside = measured, in_place, copies, beside
        self._link_seen = store.stats()
        self.hits_first = True

    def run(self, run: PlannedPass, x_TD: torch.Tensor, ids_TK: torch.Tensor) -> torch.Tensor:
        """What each expert gives each row, [T, K, D] f32: valid until the next pass."""
        ids, pairs_TKD = ids_TK.numpy(), self._outputs.begin(x_TD, ids_TK)
        flow, beside = self._flow, None
        if run.in_place and self._beside is not None:
            beside = self._beside.begin(lambda: self._compute_in_place(run, x_TD, ids, pairs_TKD))
        ready: list[View] = []
        try:
            while run.awaited and not self.hits_first:
                ready += flow.take(run)
            parts = run.parts(run.hits)
            for part in parts:
                if part:
                    self._compute(x_TD, ids, part, pairs_TKD)
                if len(parts) > 1:
                    ready += flow.take(run, wait=False)
                flow.begin(run.retire_hits(part))
            if run.in_place and beside is None:
                self._computed_in_place(run, *self._compute_in_place(run, x_TD, ids, pairs_TKD))
            while run.unfinished:
                if not ready:
                    ready += flow.take(run)
                part = run.parts(ready)[0]
                if not part:
                    continue
                self._compute(x_TD, ids, part, pairs_TKD)
                ready = ready[len(part) :]
                if ready:
                    ready += flow.take(run, wait=False)
                flow.begin(run.retire(part))
        finally:
            if beside is not None:
                self._computed_in_place(run, *beside.result())
        self._measure_link()
        return pairs_TKD

    def used(self, slots: Sequence[int]) -> None:
        """By what computes on the device: a copy into them must come after."""
        if self._copies is not None:
            for slot in slots:
                self._copies.used(slot)

    def _compute(self, x_TD: torch.Tensor, ids: Ids, views: Sequence[View], pairs_TKD: torch.Tensor) -> None:
        for view in views:
            self._residency.check(view)
        started = time.perf_counter()
        self._outputs.compute(x_TD, ids, views, pairs_TKD)
        if self._measured is not None:
            rows = int(np.isin(ids, [view.expert for view in views]).sum())
            self._measured.computed_from_slots(len(views), rows, time.perf_counter() - started)
        self.used([view.slot for view in views])

    def _compute_in_place(
        self, run: PlannedPass, x_TD: torch.Tensor, ids: Ids, pairs_TKD: torch.Tensor
    ) -> tuple[int, float]:
        """Rows and seconds. May run beside all else of the pass."""
        assert self._in_place is not None
        started = time.perf_counter()
        rows = self._outputs.compute_in_place(self._in_place, run.layer, x_TD, ids, run.in_place, pairs_TKD)
        return rows, time.perf_counter() - started

    def _computed_in_place(self, run: PlannedPass, rows: int, elapsed_s: float) -> None:
        assert self._in_place is not None
        self._in_place.release()
        if self._measured is not None:
            self._measured.computed(len(run.in_place), rows, elapsed_s)

    def _measure_link(self) -> None:
        """By all that has arrived since the last time, when something has."""
        if self._measured is None:
            return
        seen, link = self._link_seen, self._store.stats()
        if link.reads > seen.reads:
            self._measured.fetched(link.reads - seen.reads, link.busy_s - seen.busy_s)
            self._link_seen = link
