"""Steps of an engine in this process, measured over batches, contexts and prompts: what a simulation is fitted to."""

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from smoe.bench import environment
from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError
from smoe.core.model_info import ModelInfo
from smoe.core.request import Request
from smoe.core.sampling import SamplingParams
from smoe.core.step import Executor, StepPlan, StepResult
from smoe.engine.build import build_core, build_runner
from smoe.engine.core import EngineCore
from smoe.sim.serving.fitted import MeasuredStep, StepProfile
from smoe.sim.serving.load import StepLoad
from smoe.workload.plan import Plan
from smoe.workload.prompts import PromptCutter
from smoe.workload.request_trace import Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """For each batch and context: that many requests with prompts of that many tokens decode `decodes` tokens; then,
    with all of them decoding, prompts of each length of `prompts` come in, one after the other."""

    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    contexts: tuple[int, ...] = (16, 64, 192, 384)
    prompts: tuple[int, ...] = (8, 32, 128, 384)
    decodes: int = 6
    repeats: int = 3


QUICK = Grid(batches=(1, 4, 16, 32), contexts=(16, 256), prompts=(16, 128, 256), decodes=4, repeats=2)


def measure_steps(config: EngineConfig, text: Sequence[int], grid: Grid) -> StepProfile:
    """The median over repeats of each step. `text` are the token ids that prompts are cut from. Raises as
    `build_runner` does, and ConfigError for a grid that the model has no positions for."""
    runner = build_runner(config)
    try:
        info = runner.info()
        longest = max(*grid.contexts, *grid.prompts) + 2 * grid.decodes + len(grid.prompts) + 1
        if longest > info.max_model_len:
            raise ConfigError("contexts", max(grid.contexts), f"at most {info.max_model_len - longest} fewer tokens")
        watch = _Watch(runner)
        session = _Session(build_core(config, cast(Executor, watch)), watch, text)
        session.run(max(grid.batches), min(grid.contexts), grid)  # warms up
        cases = [case for case in itertools.product(grid.batches, grid.contexts) if case[0] < config.max_num_seqs]
        rounds = [[step for case in cases for step in session.run(*case, grid)] for _ in range(grid.repeats)]
    finally:
        runner.shutdown()
    return StepProfile(
        moe_layers=len(info.moe_layers),
        num_experts=info.num_experts,
        top_k=info.top_k,
        steps=tuple(map(_median, zip(*rounds, strict=True))),
        setting=_setting(config, info),
    )


def pooled(profiles: Sequence[StepProfile]) -> StepProfile:
    """The median of each step over profiles of one grid."""
    steps = tuple(map(_median, zip(*(profile.steps for profile in profiles), strict=True)))
    return replace(profiles[0], steps=steps)


class _Session:
    def __init__(self, core: EngineCore, watch: "_Watch", text: Sequence[int]) -> None:
        self._core, self._watch, self._text = core, watch, text
        self._names = (f"step-{number}" for number in itertools.count())

    def run(self, batch: int, context: int, grid: Grid) -> list[MeasuredStep]:
        """The same steps each time; all requests are gone at its end."""
        core, steps = self._core, list[MeasuredStep]()
        left = 2 * grid.decodes + len(grid.prompts)
        requests = self._requests([(context, left)] * batch + [(length, 1) for length in grid.prompts], batch)
        core.add(requests[:batch])
        for _ in range(grid.decodes):
            steps += self._step()
        for request in requests[batch:]:
            core.add([request])
            steps += self._step()
        core.abort([request.request_id for request in requests[:batch]])
        while core.has_work:
            steps += self._step()
        return steps

    def _requests(self, lengths: Sequence[tuple[int, int]], seed: int) -> list[Request]:
        arrivals = tuple(Arrival(at_s=0.0, prompt_tokens=prompt, output_tokens=out) for prompt, out in lengths)
        prompts = PromptCutter(self._text, seed).cut(Plan(arrivals=arrivals))
        return [
            Request(
                request_id=next(self._names),
                prompt_token_ids=ids,
                params=SamplingParams(max_tokens=arrival.output_tokens, ignore_eos=True),
            )
            for arrival, ids in zip(arrivals, prompts, strict=True)
        ]

    def _step(self) -> Iterator[MeasuredStep]:
        began = time.perf_counter()
        self._core.step()
        seconds = time.perf_counter() - began
        plan = self._watch.take()
        if plan is not None:
            yield MeasuredStep(StepLoad.of(plan), seconds)


def _median(steps: Sequence[MeasuredStep]) -> MeasuredStep:
    [load] = {step.load for step in steps}
    return MeasuredStep(load, statistics.median(step.seconds for step in steps))


class _Watch:
    """An Executor that keeps the plan; all else is the other's."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._plan: StepPlan | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def execute(self, plan: StepPlan) -> StepResult:
        self._plan = plan
        return self._executor.execute(plan)

    def take(self) -> StepPlan | None:
        plan, self._plan = self._plan, None
        return plan


def _setting(config: EngineConfig, info: ModelInfo) -> dict[str, Any]:
    return {
        "model": info.name,
        "fingerprint": info.fingerprint,
        "dtype": info.dtype,
        "expert_memory": config.expert_memory,
        "threads": torch.get_num_threads(),
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        **environment.describe(),
    }
