"""What a pass does about experts that hold no slot: the miss policy decides, and it is counted. Torch-free."""

from collections.abc import Callable, Sequence

import numpy as np

from smoe.offload.cache import Residency
from smoe.offload.costs import FixedCosts
from smoe.offload.distinct import distinct
from smoe.offload.policies.protocols import Array, Costs, Key, MissDecision, PolicySet, Routing

Hold = Callable[[int, Sequence[int]], frozenset[int]]
"""(layer, experts) -> those of them that can be computed in place, from now on held for that (InPlace.hold)."""


class Answers:
    """Counts are those of ExpertStats. `to_admit` are experts that background admission wants and that hold no slot."""

    def __init__(
        self, residency: Residency, policies: PolicySet, *, hold: Hold | None = None, costs: Costs | None = None
    ) -> None:
        """`hold` is needed by miss policies that compute in place; without `costs` all is free."""
        assert hold is not None or not policies.miss.computes
        self.costs = FixedCosts() if costs is None else costs
        self.substituted, self.substituted_mass = 0, 0.0
        self.computed_in_place = self.computed_in_place_rows = 0
        self.to_admit: dict[Key, None] = {}
        self._residency, self._miss, self._admission, self._hold = residency, policies.miss, policies.admission, hold
        self._decides = policies.miss.lossy or policies.miss.computes

    def decide(self, routing: Routing, experts: Sequence[int]) -> tuple[MissDecision | None, list[int]]:
        """What to compute instead of the routing, None when that is unchanged; and which experts to compute in place,
        ascending, held. `experts` are the routing's."""
        if not self._decides:
            return None, []
        layer = routing.layer
        resident = frozenset(self._residency.resident(layer))
        if resident.issuperset(experts):
            return None, []
        late = frozenset(view.expert for view in self._residency.background(layer))
        decision = self._miss.decide(routing, resident, late, self.costs)
        if decision.compute and self._hold is not None:
            return None, self._in_place(routing, self._hold(layer, sorted(decision.compute)))
        if decision.substituted is None or not decision.substituted.any():
            return None, []
        changed = decision.ids != routing.ids
        self.substituted += int(changed.sum())
        self.substituted_mass += self._bypass(routing, changed)
        return decision, []

    def _in_place(self, routing: Routing, held: frozenset[int]) -> list[int]:
        experts = sorted(held)
        if experts:
            theirs = np.isin(routing.ids, experts)
            self.computed_in_place += len(experts)
            self.computed_in_place_rows += int(theirs.sum())
            self._bypass(routing, theirs)
        return experts

    def _bypass(self, routing: Routing, chosen: Array) -> float:
        """`chosen` [T, K] of the routing's choices are not computed from slots: admission hears of it. Their mass."""
        weights = _shares(routing)
        if self._admission is not None:
            mass = np.bincount(routing.ids[chosen], weights[chosen])
            experts = distinct(routing.ids[chosen])
            admitted = self._admission.bypassed(routing.layer, experts, mass[experts].tolist())
            self.to_admit.update(dict.fromkeys(admitted))
        return float(weights[chosen].sum())


def _shares(routing: Routing) -> Array:
    """[T, K] weights that sum to 1 over a row; equal ones where no weights are known."""
    if routing.weights is None:
        return np.full(routing.ids.shape, 1 / routing.ids.shape[1])
    shares: Array = routing.weights / routing.weights.sum(axis=1, keepdims=True)
    return shares
