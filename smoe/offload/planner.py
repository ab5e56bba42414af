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
        for part in parts = run.parts(run.hits):          ids and weights of run.decision, if there is one
            compute it; if there are several parts: take();  begin(run.retire_hits(part))
        compute run.in_place where they are, and give them back
        while run.unfinished:
            if nothing of the pass has arrived that is not computed: take(), waiting for an arrival
            compute the first of run.parts(those); if there are others: take();  begin(run.retire(it))

`take` is, of every view that has arrived,
    run.awaits(view): run.arrived(view)     (failed: if run.forgives(view): begin(run.failed(view)), else the forward
                                             fails)
    else:             planner.arrived(view) or planner.failed(view)
and then, if there was one of the second kind or run.rolls, begin(run.resume()).

Between forwards a draft may say what the next one will ask for, as often as it likes:

    every background transfer that has arrived: planner.arrived(view), or planner.failed(view)
    if it says nothing new: begin(planner.more()); else:
    for view in planner.foretell(keys): if its transfer has not started, cancel it and planner.cancelled(view)
    begin(planner.start())

`begin` begins transfers, of which those of the earliest `planner.deadline(view)` go first, at equal ones those begun
first.
"""

from collections.abc import Sequence
from dataclasses import replace

from smoe.core.stats import ExpertStats
from smoe.offload.ahead import Ahead
from smoe.offload.answers import Answers, Hold
from smoe.offload.cache import Residency
from smoe.offload.distinct import distinct
from smoe.offload.drafted import Drafted, PlanOrder
from smoe.offload.layer_pass import LayerPass
from smoe.offload.policies.protocols import Array, Costs, Key, MissDecision, PolicySet, Routing
from smoe.offload.slots import View


class PlannedPass(LayerPass):
    """`decision` is set when something else than the routing is computed. `in_place` are experts, ascending, held where
    they are, that get no slot. `stale`: background transfers into this layer, in flight when the pass began, which does
    not ask for them: they have missed their deadline.
    """

    decision: MissDecision | None = None
    in_place: Sequence[int] = ()
    stale: Sequence[View] = ()

    @property
    def fused(self) -> bool:
        """Whether everything it computes is resident."""
        return self.all_hits and not self.in_place


class Planner:
    def __init__(
        self,
        residency: Residency,
        policies: PolicySet,
        layers: Sequence[int],
        *,
        max_background: int | None = None,
        pause_share: float | None = None,
        pause_window: int = 128,
        hold: Hold | None = None,
        costs: Costs | None = None,
        plan_order: PlanOrder = "deadline",
        max_planned: int | None = None,
        rolling: int | None = None,
    ) -> None:
        """`max_background` >= 1 slots may be in flight without a pass that waits; by default a layer's share of all.

        With `pause_share`, prefetching into a layer stops for PAUSE_EPOCHS forwards whenever, of the last
        `pause_window` such prefetches that ended, a greater share was wasted. Late ones count as good: what they moved
        was asked for, and begun sooner.

        `hold` and `costs` are for miss policies that compute experts where they are: what can be computed there, and
        what they compare.

        `plan_order` is the order of what drafts ask for, of which `max_planned` >= 1 may be in flight beside the rest;
        by default half of the slots. `rolling` is LayerPass's.
        """
        self._residency, self._prefetch, self._needs_logits = residency, policies.prefetch, policies.miss.needs_logits
        self._answers = Answers(residency, policies, hold=hold, costs=costs)
        self._drafted = Drafted(residency, layers, order=plan_order, max_in_flight=max_planned)
        self._ahead = Ahead(
            residency,
            policies.prefetch,
            layers,
            self._drafted,
            max_background=max_background,
            pause_share=pause_share,
            pause_window=pause_window,
        )
        self._place = {layer: place for place, layer in enumerate(layers)}
        self._rolling = rolling
        self._pass, self._layer_now, self._last_layer = 0, layers[0], layers[-1]
        self._cancelled = 0
        self._epoch_begun = False

    @property
    def needs_logits(self) -> bool:
        """Whether routings must carry logits."""
        return self._needs_logits

    def wants_lookahead(self, layer: int) -> bool:
        """Whether the pass of `layer` wants logits of the layer after it; the last one has none after it."""
        return self._ahead.wants_lookahead(layer)

    def begin_forward(self) -> None:
        self._begin_epoch()
        self._epoch_begun = False
        self._ahead.begin_forward()

    def foretell(self, keys: Sequence[Key]) -> list[View]:
        """A draft says that the next forward will ask for `keys`, distinct, those most wanted of a layer first. Returns
        transfers of what it said before and says no more. The epoch of that forward begins.
        """
        self._begin_epoch()
        self._layer_now = self._last_layer
        return self._drafted.replace(keys)

    def start(self) -> list[View]:
        """Transfers to begin now of what was foretold."""
        return self._drafted.start()

    def more(self) -> list[View]:
        """Transfers to begin, of what was foretold, now that others have arrived."""
        return self._drafted.more()

    @property
    def submitted(self) -> int:
        """Experts foretold, at one time or another, that had no slot then."""
        return self._drafted.submitted

    def begin_pass(self, routing: Routing, lookahead: Array | None = None) -> PlannedPass | None:
        """Counts what the routing asks for. None: all of it is resident, and stays so until the next call of anything.

        Without anything to prefetch, that is: with it, a pass is needed to hold the hits.
        """
        layer, residency, answers = routing.layer, self._residency, self._answers
        self._drafted.passing(layer)
        self._pass, self._layer_now = self._pass + 1, layer
        experts = distinct(routing.ids)
        residency.begin_layer(routing)
        if self._prefetch is None:
            if not (answers.to_admit or self._drafted.waits) and residency.try_hit_all(layer, experts):
                return None
        else:
            self._prefetch.observe(routing)
        residency.ask(layer, experts)
        decision, in_place = answers.decide(routing, experts)
        if decision is not None:
            experts = distinct(decision.ids)
        if in_place:
            experts = [expert for expert in experts if expert not in in_place]
        run = PlannedPass(
            residency,
            layer,
            experts,
            lambda: self._ahead.begin(routing, lookahead, answers.to_admit),
            rolling=self._rolling,
        )
        run.decision, run.in_place = decision, in_place
        run.stale = residency.background(layer)
        if in_place:
            run.stale = [view for view in run.stale if view.expert not in in_place]
        return run

    def is_background(self, view: View) -> bool:
        return self._residency.is_background(view)

    def deadline(self, view: View) -> int:
        """Of a transfer to begin now: 0 if a pass waits for it, else the ordinal of the next pass of its layer; of what
        drafts ask for that of the next pass, if they are to go in another order."""
        if not self._residency.is_background(view):
            return 0
        if self._drafted.order != "deadline" and self._drafted.is_ours(view[:2]):
            return self._pass + 1
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
        self._cancelled += 1
        self._residency.fail(view)

    def _begin_epoch(self) -> None:
        if not self._epoch_begun:
            self._residency.begin_epoch()
            self._epoch_begun = True

    def stats(self) -> ExpertStats:
        """All that is decided, nothing that is measured."""
        answers = self._answers
        return replace(
            self._residency.uses.stats(),
            computed_in_place=answers.computed_in_place,
            computed_in_place_rows=answers.computed_in_place_rows,
            cancelled=self._cancelled,
            prefetch_pauses=self._ahead.pauses,
            substituted=answers.substituted,
            substituted_mass=answers.substituted_mass,
        )
