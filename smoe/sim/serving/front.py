"""What a server in front of an engine takes of the cores that both share: reading requests, sending chunks.

loops = (ClosedLoop(streams=1, token_s=Pair(over=2.1e-3, straight=1.4e-3), ...), ...)     # measured
cost = BehindFront(ByLoad(fit(profile).cost), fit_front(loops))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from smoe.core.errors import ConfigError
from smoe.core.step import StepPlan
from smoe.sim.serving.cost import StepCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Seconds of the same thing, over the front and straight through an engine, one right after the other."""

    over: float
    straight: float

    @property
    def more(self) -> float:
        return self.over - self.straight


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """`streams` requests in flight: what a token of each stream takes, and one of the requests that have one token,
    which is the time of all by their number."""

    streams: int
    token_s: Pair
    request_s: Pair

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> "ClosedLoop":
        """Of what `asdict` gives. Raises KeyError or TypeError."""
        return cls(streams=raw["streams"], token_s=Pair(**raw["token_s"]), request_s=Pair(**raw["request_s"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Seconds that the engine loses to a step's answers being sent, to each of them, and to a request that comes."""

    step_s: float = 0.0
    answer_s: float = 0.0
    request_s: float = 0.0

    def of(self, plan: StepPlan) -> float:
        """Requests count in the step in which they begin, whenever they came: nothing that runs is restarted."""
        answers = sum([span.sample is not None for span in plan.spans])
        begun = sum([span.past == 0 for span in plan.spans])
        return (self.step_s + self.answer_s * answers if answers else 0.0) + self.request_s * begun


@dataclass(frozen=True, slots=True)
class BehindFront:
    """A StepCost: of the engine, and of the front that it shares its cores with."""

    engine: StepCost
    front: Front

    def seconds(self, plan: StepPlan, now_s: float) -> float:
        return self.engine.seconds(plan, now_s) + self.front.of(plan)


def fit_front(loops: Sequence[ClosedLoop]) -> Front:
    """None of its parts below zero. Of loops with as many streams, repeats, the median counts; they weigh by what their
    steps take, so that a hundredth of a short step counts as much as one of a long step. Requests count where fewest
    come together: in an open load they mostly come alone, and then each costs more.

    Raises ConfigError for fewer than two numbers of streams.
    """
    from scipy.optimize import nnls

    counts = sorted({loop.streams for loop in loops})
    if len(counts) < 2:
        raise ConfigError("front", f"closed loops of {counts} streams", "two numbers of streams at least")
    alike = [[loop for loop in loops if loop.streams == count] for count in counts]
    more = np.array([median(loop.token_s.more for loop in each) for each in alike])
    weights = 1 / np.array([median(loop.token_s.straight for loop in each) for each in alike])
    streams = np.array(counts, dtype=float)
    features = np.stack([np.ones_like(streams), streams], axis=1)
    step_s, answer_s = nnls(features * weights[:, None], more * weights)[0].tolist()
    alone = median(loop.request_s.more for loop in alike[0]) - step_s / counts[0] - answer_s
    return Front(step_s=step_s, answer_s=answer_s, request_s=max(0.0, alone))
