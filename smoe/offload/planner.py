"""Planner: every decision about slots that a forward takes, torch-free. The engine and the simulator drive it.

The order of calls is the contract; with transfers that arrive at once it gives the same counts to both:

    planner.begin_forward()
    for each MoE layer, in order:
        every background transfer that has arrived: planner.arrived(view), or planner.failed(view)
        run = planner.begin_pass(routing, lookahead)      lookahead only if planner.wants_lookahead(layer)
        if run is None: all experts are hits, counted; compute them; next layer
        for view in run.late: its transfer is urgent now
        for view in run.stale: if its transfer has not started, cancel it and planner.cancelled(view)
        begin(run.start())
        compute run.hits;                                 ids and weights of run.decision, if there is one
        begin(run.retire_hits())
        while run.unfinished:
            one arrival or more; of each view:
                run.awaits(view): run.arrived(view), compute it, begin(run.retire([view]))
                                  (failed: if run.forgives(view): begin(run.failed(view)), else the forward fails)
                else:             planner.arrived(view) or planner.failed(view); begin(run.resume())

`begin` begins transfers, of which those of the earliest `planner.deadline(view)` go first, at equal ones those begun
first.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from smoe.offload.cache import Residency, View
from smoe.offload.layer_pass import LayerPass
from smoe.offload.policies.protocols import Array, Key, MissDecision, PolicySet, Reason, Routing

SMALL_IDS = 512
"""Up to here a set of Python integers is the fastest way to distinct ids; one decoding row has ten or so."""
PAUSE_SHARE = 0.6  # of prefetches that end unused; what a live engine pauses at
PAUSE_EPOCHS = 256


class PlannedPass(LayerPass):
    """`stale`: background transfers into this layer, in flight when the pass began, which does not ask for them: they
    have missed their deadline."""

    stale: Sequence[View] = ()


class Planner:
    """`fetch_s` and `compute_s` (of one row of one expert) are what miss policies are told: set by the owner.

    `substituted` and `substituted_mass` count (row, choice) pairs and their summed weight, normalised over the row.
    """

    def __init__(
        self,
        residency: Residency,
        policies: PolicySet,
        layers: Sequence[int],
        *,
        max_background: int | None = None,
        pause_share: float | None = None,
        pause_window: int = 128,
    ) -> None:
        """`max_background` >= 1 slots may be in flight without a pass that waits; by default a layer's share of all.

        With `pause_share`, prefetching into a layer stops for PAUSE_EPOCHS forwards whenever, of the last
        `pause_window` such prefetches that ended, a greater share was wasted. Late ones count as good: what they moved
        was asked for, and begun sooner.
        """
        self.fetch_s = self.compute_s = 0.0
        self.substituted, self.substituted_mass, self.pauses, self.num_cancelled = 0, 0.0, 0, 0
        self._residency, self._prefetch, self._miss = residency, policies.prefetch, policies.miss
        self._admission = policies.admission
        self._place = {layer: place for place, layer in enumerate(layers)}
        self._pass, self._layer_now = 0, layers[0]
        self._next_layer = dict(zip(layers, [*layers[1:], layers[0]], strict=True))
        self._last_layer = layers[-1]
        share = max(1, residency.num_slots // len(layers))
        self._max_background = share if max_background is None else max_background
        self._pause_share, self._pause_window = pause_share, pause_window
        self._judged = dict.fromkeys(layers, (0, 0))
        self._paused_until: dict[int, int] = {}
        self._epoch = 0
        self._to_admit: dict[Key, None] = {}

    @property
    def needs_logits(self) -> bool:
        """Whether routings must carry logits."""
        return self._miss.needs_logits

    def wants_lookahead(self, layer: int) -> bool:
        """Whether the pass of `layer` wants logits of the layer after it; the last one has none after it."""
        return (
            self._prefetch is not None
            and self._prefetch.needs_lookahead
            and layer != self._last_layer
            and self._next_layer[layer] not in self._paused_until
        )

    def begin_forward(self) -> None:
        self._epoch += 1
        self._residency.begin_epoch()
        if self._prefetch is not None and self._pause_share is not None:
            self._judge(self._pause_share)

    def begin_pass(self, routing: Routing, lookahead: Array | None = None) -> PlannedPass | None:
        """Counts what the routing asks for. None: all of it is resident, and stays so until the next call of anything.

        Without prefetching, that is: with it, a pass is needed to hold the hits.
        """
        layer, residency = routing.layer, self._residency
        self._pass, self._layer_now = self._pass + 1, layer
        experts = distinct(routing.ids)
        residency.begin_layer(routing)
        if self._prefetch is None:
            if not self._to_admit and residency.try_hit_all(layer, experts):
                return None
        else:
            self._prefetch.observe(routing)
        residency.ask(layer, experts)
        decision = self._decide(routing, experts)
        if decision is not None:
            experts = distinct(decision.ids)
        run = PlannedPass(residency, layer, experts, partial(self._background, routing, lookahead))
        run.decision = decision
        run.stale = residency.background(layer)
        return run

    def is_background(self, view: View) -> bool:
        return self._residency.is_background(view)

    def deadline(self, view: View) -> int:
        """Of a transfer to begin now: 0 if a pass waits for it, else the ordinal of the next pass of its layer."""
        if not self._residency.is_background(view):
            return 0
        between = (self._place[view.layer] - self._place[self._layer_now] - 1) % len(self._place)
        return self._pass + between + 1

    def arrived(self, view: View) -> None:
        """A background transfer has arrived: resident."""
        self._residency.commit(view)

    def failed(self, view: View) -> None:
        """A background transfer has failed: nobody notices unless its expert is asked for."""
        self._residency.fail(view)

    def cancelled(self, view: View) -> None:
        """A background transfer was taken back before it began."""
        self.num_cancelled += 1
        self._residency.fail(view)

    def _decide(self, routing: Routing, experts: Sequence[int]) -> MissDecision | None:
        """What to compute instead of the routing; None when that is unchanged."""
        if not self._miss.lossy:
            return None
        resident = frozenset(self._residency.resident(routing.layer))
        if resident.issuperset(experts):
            return None
        decision = self._miss.decide(routing, resident, self.fetch_s, self.compute_s)
        if decision.substituted is None or not decision.substituted.any():
            return None
        assert routing.weights is not None
        changed = decision.ids != routing.ids
        weights = routing.weights / routing.weights.sum(axis=1, keepdims=True)
        self.substituted += int(changed.sum())
        self.substituted_mass += float(weights[changed].sum())
        if self._admission is not None:
            mass = np.bincount(routing.ids[changed], weights[changed])
            replaced = distinct(routing.ids[changed])
            admitted = self._admission.substituted(routing.layer, replaced, mass[replaced].tolist())
            self._to_admit.update(dict.fromkeys(admitted))
        return decision

    def _background(self, routing: Routing, lookahead: Array | None) -> list[View]:
        """Transfers for later, once no miss of this pass waits for a slot."""
        residency = self._residency
        begin: list[View] = []
        next_layer, paused = self._next_layer[routing.layer], self._paused_until
        if self._prefetch is not None and next_layer not in paused:
            keys = self._prefetch.plan(routing, next_layer, lookahead)
            if paused:
                keys = [key for key in keys if key[0] not in paused]
            residency.confirm(keys)
            for key in keys:
                if residency.background_in_flight >= self._max_background:
                    break
                if not residency.holds(key):
                    view = residency.try_reserve(*key, Reason.PREFETCH)
                    if view is not None:
                        begin.append(view)
        for key in list(self._to_admit):
            if residency.holds(key):
                del self._to_admit[key]
            elif residency.background_in_flight < self._max_background:
                view = residency.try_reserve(*key, Reason.ADMISSION)
                if view is not None:
                    del self._to_admit[key]
                    begin.append(view)
        return begin

    def _judge(self, pause_share: float) -> None:
        for layer, until in list(self._paused_until.items()):
            if until <= self._epoch:
                del self._paused_until[layer]
        for layer, (paid, wasted) in self._residency.prefetch_paid.items():
            paid_before, wasted_before = self._judged[layer]
            ended = paid + wasted - paid_before - wasted_before
            if ended >= self._pause_window:
                if wasted - wasted_before > pause_share * ended:
                    self._paused_until[layer] = self._epoch + PAUSE_EPOCHS
                    self.pauses += 1
                self._judged[layer] = (paid, wasted)


def distinct(ids: Array) -> list[int]:
    """Ascending."""
    if ids.size <= SMALL_IDS:
        return sorted(set(ids.ravel().tolist()))
    found: list[int] = np.flatnonzero(np.bincount(ids.ravel())).tolist()
    return found
