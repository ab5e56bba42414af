"""What a draft's routing asks for: counts by layer and expert, and the plan of the experts that it chose most.

Shapes: L MoE layers, E experts a layer, T rows that draft, K experts a row.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from smoe.offload.policies.protocols import Array, Key

Scale = Literal["stable", "demand"]
"""How many experts a layer's plan may name: as many in each layer, or, of the same number over all layers, fewer where
the draft chose fewer and more where it chose more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRule:
    """`sticky` prefers, of equal counts, members of the plan before. `resident_first` names resident ones before all
    others. An expert chosen less than `min_count` >= 1 times is not named. Else of equal counts the lowest expert."""

    scale: Scale = "stable"
    sticky: bool = False
    resident_first: bool = False
    min_count: int = 1


class DraftCounts:
    """One thread calls."""

    def __init__(self, layers: Sequence[int], num_experts: int, rule: PlanRule) -> None:
        self._layers, self._rule = layers, rule
        self._place = {layer: place for place, layer in enumerate(layers)}
        self._counts_LE = np.zeros((len(layers), num_experts), dtype=np.int64)
        self._planned_LE = np.zeros((len(layers), num_experts), dtype=bool)

    @property
    def needs_residents(self) -> bool:
        """Whether `plan` looks at what is resident."""
        return self._rule.resident_first

    def clear(self) -> None:
        self._counts_LE[:] = 0
        self._planned_LE[:] = False

    def add(self, layer: int, ids_TK: Array) -> None:
        """One for each choice."""
        counts_E = self._counts_LE[self._place[layer]]
        counts_E += np.bincount(ids_TK.ravel(), minlength=len(counts_E))

    def chosen(self) -> list[Key]:
        """Every expert that was chosen, first layer first."""
        return [(self._layers[place], int(expert)) for place, expert in np.argwhere(self._counts_LE > 0)]

    def plan(self, slots_a_layer: int, resident: Collection[Key] = ()) -> tuple[list[Key], bool]:
        """First layer first, in each the most chosen first; and whether every layer's plan is full, so that more
        drafting could only change it. `resident` is needed where `needs_residents`.
        """
        rule, counts_LE = self._rule, self._counts_LE
        named_LE = counts_LE >= rule.min_count
        score_LE = counts_LE * 2 + (self._planned_LE if rule.sticky else 0)
        if rule.resident_first:
            score_LE = score_LE + self._held(resident) * (score_LE.max() + 1)
        ranked_LE = np.argsort(-np.where(named_LE, score_LE, -1), axis=1, kind="stable")
        wanted_L = named_LE.sum(1)
        room_L = np.full(len(wanted_L), slots_a_layer)
        if rule.scale == "demand":
            room_L = _share(wanted_L, score_LE, ranked_LE, slots_a_layer)
        taken_L = np.minimum(wanted_L, room_L)
        self._planned_LE[:] = False
        keys: list[Key] = []
        for place, (layer, taken) in enumerate(zip(self._layers, taken_L.tolist(), strict=True)):
            experts_M = ranked_LE[place, :taken]
            self._planned_LE[place, experts_M] = True
            keys += [(layer, expert) for expert in experts_M.tolist()]
        return keys, bool((taken_L == slots_a_layer).all() if rule.scale == "stable" else (taken_L < wanted_L).any())

    def _held(self, resident: Collection[Key]) -> Array:
        held_LE = np.zeros_like(self._planned_LE)
        for layer, expert in resident:
            held_LE[self._place[layer], expert] = True
        return held_LE


def _share(wanted_L: Array, score_LE: Array, ranked_LE: Array, slots_a_layer: int) -> Array:
    """What layers do not want of their equal share goes to the highest scores that other layers have beyond it."""
    room_L = np.minimum(wanted_L, slots_a_layer)
    spare = slots_a_layer * len(wanted_L) - int(room_L.sum())
    beyond = [
        (-int(score_LE[place, ranked_LE[place, rank]]), rank, place)
        for place, wanted in enumerate(wanted_L.tolist())
        for rank in range(slots_a_layer, wanted)
    ]
    for _, _, place in sorted(beyond)[:spare]:
        room_L[place] += 1
    return room_L
