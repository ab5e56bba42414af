"""When a draft's routing brings experts in: one class for each timing, all of them a DraftWindow. Torch-free."""

import math
from collections.abc import Sequence
from enum import Enum

from smoe.core.draft import PrefetchTiming
from smoe.offload.drafting import DraftWindow, Prefetcher
from smoe.offload.policies.draft_plan import DraftCounts, PlanRule
from smoe.offload.policies.protocols import Array

KEPT = 0.75
FIRST_STEP_S = 1e-3
FIRST_SHARE = 0.2
FIXED_SHARES = (0.2, 0.6)


def make_window(
    timing: PrefetchTiming,
    prefetcher: Prefetcher,
    layers: Sequence[int],
    num_experts: int,
    rule: PlanRule | None = None,
) -> DraftWindow:
    """`layers` are the MoE layers in ascending order. A window serves one prefetcher for its life.

    By default a plan names resident experts first: to bring in what was chosen often for what was chosen once costs as
    many transfers as it saves, since verification asks for both. Fixed checkpoints plan as published, by counts alone.
    """
    rule = PlanRule(resident_first=timing != "fixed") if rule is None else rule
    kinds = {"adaptive": Adaptive, "early": Early, "late": Late, "fixed": Fixed, "none": Idle}
    return kinds[timing](prefetcher, DraftCounts(layers, num_experts, rule))


class Counting:
    """Counts what is drafted; subclasses say when that is planned and begun. Where it is planned, more of the plan
    before is not begun any more: its transfers would be taken back, or be in the way."""

    def __init__(self, prefetcher: Prefetcher, counts: DraftCounts) -> None:
        self._prefetcher, self._counts = prefetcher, counts
        self._steps = self._completed = 0

    def begin(self, steps: int) -> None:
        self._counts.clear()
        self._steps, self._completed = steps, 0

    def routed(self, layer: int, ids_TK: Array) -> None:
        self._counts.add(layer, ids_TK)

    def after_step(self, seconds: float) -> None:
        self._completed += 1
        if self._due(seconds):
            self._submitted(*self._submit())
        else:
            self._prefetcher.poll()

    def before_verify(self) -> None:
        self._prefetcher.poll()
        self._counts.clear()

    def _due(self, seconds: float) -> bool:
        """Whether to plan after the step that took `seconds`."""
        return False

    def _submitted(self, nbytes: int, full: bool) -> None:
        """Bytes newly under way, and whether the plan is full."""

    def _submit(self) -> tuple[int, bool]:
        prefetcher = self._prefetcher
        resident = prefetcher.resident() if self._counts.needs_residents else ()
        keys, full = self._counts.plan(prefetcher.slots_a_layer, resident)
        return prefetcher.prefetch(keys), full


class Idle(Counting):
    """Nothing is brought in."""


class Early(Counting):
    """After the first token."""

    def _due(self, seconds: float) -> bool:
        return self._completed == 1


class Late(Counting):
    """When all is drafted, before verification."""

    def before_verify(self) -> None:
        if self._completed:
            self._submit()
        else:
            self._prefetcher.poll()
        self._counts.clear()


class Fixed(Counting):
    """At fixed shares of the tokens to draft."""

    def begin(self, steps: int) -> None:
        super().begin(steps)
        self._at = {max(1, math.floor(share * steps)) for share in FIXED_SHARES}

    def _due(self, seconds: float) -> bool:
        return self._completed in self._at


class Phase(Enum):
    COLD_START = "cold start"
    PREFETCH_OVERLAP = "prefetch overlap"
    CLEANUP = "cleanup"


class Adaptive(Counting):
    """Specter's: first when a fifth is drafted, then whenever what was begun before should have arrived, until every
    layer's plan is full or the draft is at its end. From then on nothing new is looked for; what is under way goes on.
    """

    def __init__(self, prefetcher: Prefetcher, counts: DraftCounts) -> None:
        super().__init__(prefetcher, counts)
        self.phase, self.boundary = Phase.CLEANUP, 0
        self._step_s = FIRST_STEP_S

    def begin(self, steps: int) -> None:
        super().begin(steps)
        self.phase, self.boundary = Phase.COLD_START, max(1, math.floor(FIRST_SHARE * steps))

    def _due(self, seconds: float) -> bool:
        self._step_s = KEPT * self._step_s + (1 - KEPT) * seconds
        if self.phase is Phase.CLEANUP or self._completed < self.boundary:
            return False
        if self._completed >= self._steps:
            self.phase = Phase.CLEANUP
            return False
        return True

    def _submitted(self, nbytes: int, full: bool) -> None:
        drained_s = nbytes / self._prefetcher.bytes_per_second
        self.boundary = min(self._steps, self._completed + max(1, math.ceil(drained_s / self._step_s)))
        self.phase = Phase.CLEANUP if full or self.boundary == self._steps else Phase.PREFETCH_OVERLAP
