"""How long a step takes: the one thing about the hardware that a simulation of serving asks for."""

from dataclasses import dataclass
from typing import Protocol

from smoe.core.step import StepPlan
from smoe.sim.serving.load import StepLoad


class StepCost(Protocol):
    def seconds(self, plan: StepPlan, now_s: float) -> float:
        """Of this step, above zero, begun at `now_s`, which never goes back. Called once for each step, in order: a
        cost may keep what earlier steps have left (a cache, transfers under way)."""
        ...


class LoadCost(Protocol):
    """A cost that only depends on the load."""

    def of(self, load: StepLoad) -> float: ...


@dataclass(frozen=True, slots=True)
class ByLoad:
    """A StepCost of a LoadCost, and `draft_step_s` for each token that is drafted for all sequences together."""

    cost: LoadCost
    draft_step_s: float = 0.0

    def seconds(self, plan: StepPlan, now_s: float) -> float:
        load = StepLoad.of(plan)
        return self.cost.of(load) + load.draft_steps * self.draft_step_s
