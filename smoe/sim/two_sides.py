"""A trace of windows through a Planner where two processors compute at once: slots on the fast side, and what is
computed in place on the slow one. In virtual time."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from smoe.core.route_trace import RouteTrace
from smoe.offload.cache import Residency
from smoe.offload.planner import PlannedPass, Planner
from smoe.offload.policies.balance import LinearSides, Sides, Split
from smoe.offload.policies.catalog import Geometry
from smoe.offload.policies.protocols import Routing
from smoe.offload.policies.spec import parse_policies
from smoe.offload.slots import View
from smoe.sim.link import Link


@dataclass(frozen=True, slots=True)
class SideCosts:
    """What policies compare, of experts one by one."""

    sides: Sides
    fetch_s: float

    def compute_s(self, rows: int) -> float:
        return self.sides.slow_s([rows])

    def slot_s(self, rows: int) -> float:
        return self.sides.fast_s([rows]) - self.sides.fast_s(())


@dataclass(frozen=True, slots=True)
class Window:
    """`splits` by layer: the two sides' times, fetched misses on the fast one. `copies` began in it, `wait_s` is what
    nobody computed in, beyond `splits`."""

    splits: tuple[Split, ...]
    copies: int
    wait_s: float
    fast_rows: int
    slow_rows: int

    @property
    def makespan_s(self) -> float:
        return sum(split.makespan_s for split in self.splits)

    @property
    def difference_s(self) -> float:
        return sum(split.difference_s for split in self.splits)


class TwoSides:
    """Each sequence of `trace` is one forward. `draft_s` passes before each; transfers go on meanwhile."""

    def __init__(
        self,
        trace: RouteTrace,
        policy: str,
        num_slots: int,
        sides: LinearSides,
        *,
        fetch_s: float,
        draft_s: float = 0.0,
        shared: bool = True,
        seed: int = 0,
    ) -> None:
        """`num_slots` over all layers, `shared` above one each or dealt out evenly. Raises ConfigError."""
        layers = trace.layers
        geometry = Geometry(layers=layers, num_experts=trace.num_experts, top_k=trace.top_k)
        policies = parse_policies(policy).build(geometry, seed=seed)
        floor = 1 if shared else num_slots // len(layers)
        self.residency = Residency(num_slots, layers, policies.eviction, floor=floor)
        self.planner = Planner(
            self.residency, policies, layers, hold=lambda layer, e: frozenset(e), costs=SideCosts(sides, fetch_s)
        )
        self.now = 0.0
        self._trace, self._sides, self._draft_s = trace, sides, draft_s
        self._link, self._transfers = Link(fetch_s), 0

    def run(self) -> list[Window]:
        starts = self._trace.sequence_start.tolist()
        windows = [self._window(start, end) for start, end in pairwise(starts)]
        for view in self._link.arrivals(float("inf")):
            self.planner.arrived(view)
        self.residency.check_idle()
        return windows

    def _window(self, start: int, end: int) -> Window:
        trace, before = self._trace, self._transfers
        self.now += self._draft_s
        began, splits, fast_rows, slow_rows = self.now, list[Split](), 0, 0
        self.planner.begin_forward()
        for index, layer in enumerate(trace.layers):
            for view in self._link.arrivals(self.now):
                self.planner.arrived(view)
            ids = trace.expert_ids[index, start:end].astype(np.int32)
            weights = None if trace.expert_weights is None else trace.expert_weights[index, start:end]
            routing = Routing(
                layer=layer,
                ids=ids,
                weights=None if weights is None else weights.astype(np.float32),
                token_ids=trace.token_ids[start:end],
            )
            rows = np.bincount(ids.ravel(), minlength=trace.num_experts).tolist()
            run = self.planner.begin_pass(routing)
            slow = [] if run is None else [rows[expert] for expert in run.in_place]
            fast = [count for count in rows if count] if run is None else self._run(run, rows, sum(slow) > 0)
            splits.append(Split(self._sides.fast_s(fast), self._sides.slow_s(slow)))
            if run is None:
                self.now += splits[-1].fast_s
            fast_rows, slow_rows = fast_rows + sum(fast), slow_rows + sum(slow)
        wait_s = self.now - began - sum(split.makespan_s for split in splits)
        return Window(tuple(splits), self._transfers - before, wait_s, fast_rows, slow_rows)

    def _run(self, run: PlannedPass, rows: Sequence[int], both: bool) -> list[int]:
        """Rows of the experts computed from slots."""
        link, sides = self._link, self._sides
        for view in run.stale:
            if link.try_cancel(view):
                self._transfers -= 1
                self.planner.cancelled(view)
        link.hurry(run.late)
        self._begin(run.start())
        slow_ends = self.now + (sides.slow_s(rows[expert] for expert in run.in_place) if both else 0.0)
        fast = [rows[view.expert] for view in run.hits]
        self.now += sides.fast_s(fast)
        self._begin(run.retire_hits())
        while run.unfinished:
            self.now = max(self.now, link.next_arrival_s())
            for view in link.arrivals(self.now):
                if run.awaits(view):
                    run.arrived(view)
                    fast.append(rows[view.expert])
                    self.now += sides.fast_s(fast[-1:]) - sides.fast_s(())
                    self._begin(run.retire([view]))
                else:
                    self.planner.arrived(view)
                    self._begin(run.resume())
        self.now = max(self.now, slow_ends)
        return fast

    def _begin(self, views: Sequence[View]) -> None:
        self._transfers += len(views)
        for view in views:
            self._link.begin(view, self.now, deadline=self.planner.deadline(view))
