"""The loop: a trace through a Planner, in virtual time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from smoe.core.route_trace import RouteTrace
from smoe.offload.distinct import distinct
from smoe.offload.planner import PlannedPass, Planner
from smoe.offload.policies.protocols import Key, Routing
from smoe.offload.slots import View
from smoe.sim.compute import ComputeModel
from smoe.sim.forwards import Span
from smoe.sim.link import Link


class Replay:
    """Makes the calls that the engine makes, in the order that Planner asks for. `now` is the virtual time in seconds,
    `compute` what computing takes; both may be set between forwards, `now` only forward.

    What the engine's store does in its own time the link does here: with transfers that take no time, both deliver in
    the order of `begin`, and all counts are equal.
    """

    def __init__(self, trace: RouteTrace, planner: Planner, link: Link, compute: ComputeModel) -> None:
        self.now = self.wait_s = self.prompt_s = 0.0
        self.forwards = self.transfers = 0
        self._planner, self._link, self.compute = planner, link, compute
        self._layers = trace.layers
        self._ids = list(trace.expert_ids.astype(np.int32))
        self._weights = _by_layer(trace.expert_weights, np.float32, len(trace.layers))
        self._logits = _by_layer(trace.router_logits, np.float32, len(trace.layers))
        self._lookahead = _by_layer(trace.lookahead_logits, np.float16, len(trace.layers))
        self._token_ids = trace.token_ids

    def forward(self, spans: Sequence[Span], *, prompt: bool = False) -> None:
        """One pass over all layers for the rows of `spans`; of those of a `prompt`, `prompt_s` is the time."""
        began = self.now
        self._forward(spans)
        if prompt:
            self.prompt_s += self.now - began

    def _forward(self, spans: Sequence[Span]) -> None:
        planner, link = self._planner, self._link
        layer_s, compute = self.compute.layer_s, self.compute
        rows: Any = slice(*spans[0]) if len(spans) == 1 else np.concatenate([np.arange(*span) for span in spans])
        token_ids = self._token_ids[rows]
        single = len(token_ids) == 1
        self.forwards += 1
        planner.begin_forward()
        for index, layer in enumerate(self._layers):
            self.now += layer_s
            if link.busy:
                for view in link.arrivals(self.now):
                    planner.arrived(view)
            ids, weights = self._ids[index][rows], self._weights[index]
            logits, lookahead = self._logits[index], self._lookahead[index]
            run = planner.begin_pass(
                Routing(
                    layer=layer,
                    ids=ids,
                    weights=None if weights is None else weights[rows],
                    logits=None if logits is None else logits[rows],
                    token_ids=token_ids,
                ),
                lookahead[rows] if lookahead is not None and planner.wants_lookahead(layer) else None,
            )
            if run is None:
                self.now += compute.experts_s(ids.size if single else len(distinct(ids)), ids.size)
                continue
            if run.decision is not None:
                ids = run.decision.ids
            self._run(run, None if single else np.bincount(ids.ravel()).tolist())

    def _run(self, run: PlannedPass, rows_of: list[int] | None) -> None:
        """One pass; `rows_of` counts rows by expert, None: one each."""
        planner, link = self._planner, self._link
        for view in run.stale:
            if link.try_cancel(view):
                self.transfers -= 1
                planner.cancelled(view)
        link.hurry(run.late)
        self._begin(run.start())
        ready: list[View] = []
        parts = run.parts(run.hits)
        for part in parts:
            self.now += self._experts_s(part, rows_of)
            if len(parts) > 1:
                ready += self._take(run)
            self._begin(run.retire_hits(part))
        if run.in_place:
            in_place = len(run.in_place) if rows_of is None else sum([rows_of[expert] for expert in run.in_place])
            self.now += in_place * self.compute.in_place_row_s
        while run.unfinished:
            if not ready:
                if not link.busy:
                    self._skip(run)
                    continue
                arrives = link.next_arrival_s()
                if arrives > self.now:
                    self.wait_s += arrives - self.now
                    self.now = arrives
                ready += self._take(run)
            part = run.parts(ready)[0]
            if not part:
                continue
            self.now += self._experts_s(part, rows_of)
            ready = ready[len(part) :]
            if ready:
                ready += self._take(run)
            self._begin(run.retire(part))

    def _take(self, run: PlannedPass) -> list[View]:
        """What has arrived by now of the pass; what of others is taken in too."""
        views: list[View] = []
        others = False
        for view in self._link.arrivals(self.now):
            if run.awaits(view):
                run.arrived(view)
                views.append(view)
            else:
                self._planner.arrived(view)
                others = True
        if others or run.rolls:
            self._begin(run.resume())
        return views

    def _experts_s(self, views: Sequence[View], rows_of: list[int] | None) -> float:
        rows = len(views) if rows_of is None else sum([rows_of[view.expert] for view in views])
        return self.compute.experts_s(len(views), rows)

    def _skip(self, run: PlannedPass) -> None:
        """An expert that gets no slot is still carried, and computed."""
        self.transfers += 1
        self.wait_s += self._link.transfer_s
        self.now += self._link.transfer_s + self.compute.row_s
        self._begin(run.skip())

    def prefetch(self, keys: Sequence[Key]) -> None:
        """What an engine does with a plan of a draft."""
        self._take_in()
        for view in self._planner.foretell(keys):
            if self._link.try_cancel(view):
                self.transfers -= 1
                self._planner.cancelled(view)
        self._begin(self._planner.start())

    def poll(self) -> None:
        """Between forwards."""
        self._take_in()
        self._begin(self._planner.more())

    def _take_in(self) -> None:
        """What has arrived up to now."""
        for view in self._link.arrivals(self.now):
            self._planner.arrived(view)

    def _begin(self, views: Sequence[View]) -> None:
        link, now = self._link, self.now
        self.transfers += len(views)
        for view in views:
            link.begin(view, now, deadline=self._planner.deadline(view))


def _by_layer(array: Any, dtype: Any, layers: int) -> list[Any]:
    return [None] * layers if array is None else list(array.astype(dtype))
