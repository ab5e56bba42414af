"""The engine's decisions without its bytes: a planner whose transfers take no time. Torch-free.

Waited-for experts arrive within their pass; background ones before the next pass begins.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Self

from smoe.core.stats import ExpertStats
from smoe.offload.cache import Residency
from smoe.offload.planner import Planner
from smoe.offload.policies.protocols import Array, MissDecision, PolicySet, Routing
from smoe.offload.slots import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What happened in `forwards`, to `choices` = rows x k picks of routers; `rows` are counted in every layer.

    `substituted` were computed by another expert, `waited` fetched first; `mass` is the summed weight of the former,
    normalised over each row's k; `admitted` were loaded in the background.
    """

    forwards: int = 0
    rows: int = 0
    choices: int = 0
    substituted: int = 0
    waited: int = 0
    admitted: int = 0
    mass: float = 0.0

    @property
    def share(self) -> float:
        """Of the choices, how many were substituted."""
        return self.substituted / self.choices if self.choices else 0.0

    @property
    def mean_mass(self) -> float:
        """Substituted gate mass a row and layer, m."""
        return self.mass / self.rows if self.rows else 0.0

    def since(self, earlier: Self) -> Self:
        return type(self)(**{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)})

    def plus(self, other: Self) -> Self:
        return type(self)(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


class IdealCache:
    """`num_slots` over all `layers`, of which `floor` are safe for each; policies as in the engine."""

    def __init__(
        self, policies: PolicySet, layers: tuple[int, ...], *, num_slots: int, floor: int, max_background: int
    ) -> None:
        self._residency = Residency(num_slots, layers, policies.eviction, floor=floor)
        self._planner = Planner(self._residency, policies, layers, max_background=max_background)
        self._landed: list[View] = []
        self._forwards = self._rows = self._choices = 0

    @property
    def needs_logits(self) -> bool:
        return self._planner.needs_logits

    def begin_forward(self) -> None:
        self._forwards += 1
        self._planner.begin_forward()

    def wants_lookahead(self, layer: int) -> bool:
        return self._planner.wants_lookahead(layer)

    def route(self, routing: Routing, lookahead: Array | None = None) -> MissDecision | None:
        """One pass, with its transfers. What to compute instead of the routing; None: just that."""
        self._rows += routing.ids.shape[0]
        self._choices += routing.ids.size
        for view in self._landed:
            self._planner.arrived(view)
        self._landed.clear()
        run = self._planner.begin_pass(routing, lookahead)
        if run is None:
            return None
        awaited: deque[View] = deque()
        self._begin(run.start(), awaited)
        self._begin(run.retire_hits(), awaited)
        while run.unfinished:
            view = awaited.popleft()
            run.arrived(view)
            self._begin(run.retire([view]), awaited)
        return run.decision

    def tally(self) -> Tally:
        """Since the start."""
        stats = self._planner.stats()
        return Tally(
            forwards=self._forwards,
            rows=self._rows,
            choices=self._choices,
            substituted=stats.substituted,
            waited=stats.misses - stats.substituted,
            admitted=stats.admitted,
            mass=stats.substituted_mass,
        )

    def stats(self) -> ExpertStats:
        """Of decisions: nothing is moved, and nobody waits."""
        return self._planner.stats()

    def check_integrity(self) -> None:
        self._residency.check_idle()

    def _begin(self, views: Iterable[View], awaited: deque[View]) -> None:
        for view in views:
            (self._landed if self._planner.is_background(view) else awaited).append(view)
