"""A step's time from steps that were measured: a sum of what it asks for, each at a price that is not below zero."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smoe.core.errors import ConfigError
from smoe.sim.serving.front import ClosedLoop
from smoe.sim.serving.load import StepLoad

SCHEMA = 1
_ROUNDS = 4
FEATURES = ("step", "sequence", "prefill token", "decode row", "expert", "prefill pair", "decode pair")


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    load: StepLoad
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """Steps of one engine, and if they were measured closed loops over a server in front of it. `setting` says of what
    and on what: model, dtype, threads, commit."""

    moe_layers: int
    num_experts: int
    top_k: int
    steps: tuple[MeasuredStep, ...]
    setting: dict[str, Any]
    front: tuple[ClosedLoop, ...] = ()

    def write(self, path: Path) -> None:
        steps = [{**asdict(step.load), "seconds": step.seconds} for step in self.steps]
        sizes = {name: getattr(self, name) for name in ("moe_layers", "num_experts", "top_k")}
        front = {"front": [asdict(loop) for loop in self.front]} if self.front else {}
        body = {"schema": SCHEMA, "setting": self.setting, **sizes, "steps": steps, **front}
        path.write_text(json.dumps(body) + "\n")

    @classmethod
    def read(cls, path: Path) -> "StepProfile":
        """Raises ConfigError."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            if raw["schema"] != SCHEMA:
                raise ConfigError(f"{path}: schema", raw["schema"], f"{SCHEMA}")
            steps = []
            for each in raw["steps"]:
                seconds = each.pop("seconds")
                steps.append(MeasuredStep(StepLoad(**each), seconds))
            sizes = {name: raw[name] for name in ("moe_layers", "num_experts", "top_k")}
            front = tuple([ClosedLoop.parse(each) for each in raw.get("front", ())])
            return cls(steps=tuple(steps), setting=raw["setting"], front=front, **sizes)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError("step_profile", str(path), f"a profile of steps: {error!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCost:
    """A LoadCost. `seconds` are the prices of FEATURES; `experts_of` gives how many distinct experts are likely to be
    used by so many rows, over all layers."""

    seconds: tuple[float, ...]
    moe_layers: int
    num_experts: int
    top_k: int

    def of(self, load: StepLoad) -> float:
        step, sequence, prefill, decode, expert, prefill_pair, decode_pair = self.seconds
        return (
            step
            + sequence * load.sequences
            + prefill * load.prefill_tokens
            + decode * load.decode_rows
            + expert * self.experts_of(load.rows)
            + prefill_pair * load.prefill_pairs
            + decode_pair * load.decode_pairs
        )

    def experts_of(self, rows: int) -> float:
        return distinct_experts(self.moe_layers, self.num_experts, self.top_k, rows)


def distinct_experts(moe_layers: int, num_experts: int, top_k: int, rows: int) -> float:
    """As if choices of different rows were independent and even."""
    return moe_layers * num_experts * (1 - (1 - top_k / num_experts) ** rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """`cost`, and how far off it is on steps that it was not fitted to, every fourth: |predicted / measured - 1|."""

    cost: FittedCost
    steps: int
    median_error: float
    p90_error: float
    bias: float
    """Of the sum of those steps' times: predicted / measured - 1."""


def fit(profile: StepProfile) -> Fit:
    """Least squares of relative errors, no price below zero: steps of a millisecond count as much as those of a second.

    Raises ConfigError for too few steps.
    """
    steps = profile.steps
    if len(steps) < 4 * len(FEATURES):
        raise ConfigError("step_profile", f"{len(steps)} steps", f"at least {4 * len(FEATURES)}")
    judged = steps[3::4]
    fitted = [step for number, step in enumerate(steps) if number % 4 != 3]
    cost = FittedCost(
        seconds=_prices(profile, fitted),
        moe_layers=profile.moe_layers,
        num_experts=profile.num_experts,
        top_k=profile.top_k,
    )
    predicted = np.array([cost.of(step.load) for step in judged])
    measured = np.array([step.seconds for step in judged])
    errors = np.abs(predicted / measured - 1)
    return Fit(
        cost=cost,
        steps=len(steps),
        median_error=float(np.median(errors)),
        p90_error=float(np.percentile(errors, 90)),
        bias=float(predicted.sum() / measured.sum() - 1),
    )


def _prices(profile: StepProfile, steps: Sequence[MeasuredStep]) -> tuple[float, ...]:
    from scipy.optimize import nnls

    sizes = profile.moe_layers, profile.num_experts, profile.top_k
    rows = [
        (
            1.0,
            float(load.sequences),
            float(load.prefill_tokens),
            float(load.decode_rows),
            distinct_experts(*sizes, load.rows),
            float(load.prefill_pairs),
            float(load.decode_pairs),
        )
        for load in (step.load for step in steps)
    ]
    features = np.array(rows)
    seconds = weights = np.array([step.seconds for step in steps])
    found = np.zeros(len(FEATURES))
    for _ in range(_ROUNDS):
        weighed = features / weights[:, None]
        # Columns of like size, so that the solver's tolerance means the same for each.
        scale = np.maximum(np.abs(weighed).max(axis=0), 1e-30)
        found = nnls(weighed / scale, seconds / weights)[0] / scale
        # By what the step should take: a step that something held up would weigh too little by what it took.
        weights = features @ found
    return tuple(found.tolist())
