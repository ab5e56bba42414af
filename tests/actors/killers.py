"""A rank that kills itself at the worst moment: once in each of several lives, at another point in each."""

import os
import signal
from pathlib import Path
from typing import Any

from smoe.collectives.world import WorldPlan
from smoe.core.config import EngineConfig
from smoe.core.step import StepPlan, StepResult
from smoe.engine.runner import Runner

LIVES = ("prefill", "decode", "load")
VICTIM = 1


def build(folder: str, config: EngineConfig, world: WorldPlan | None) -> Runner:
    """In `folder` it notes its lives, so that the one after the last of LIVES is a long one."""
    from smoe.engine.parallel import build_rank_runner

    assert world is not None
    if world.rank != VICTIM:
        return build_rank_runner(config, world)
    lived = len(list(Path(folder).iterdir()))
    phase = LIVES[lived] if lived < len(LIVES) else None
    (Path(folder) / f"{lived}-{os.getpid()}").touch()
    if phase == "load":
        _die()
    runner = build_rank_runner(config, world)
    if phase is not None:
        _kill_within(runner, phase)
    return runner


def _kill_within(runner: Any, phase: str) -> None:
    """While it computes what others have sent, to whom it would answer next: in a middle layer of such a step."""
    local, execute = runner._bank._local, runner.execute
    apply, left = local.apply, [0]

    def executing(plan: StepPlan) -> StepResult:
        now = "prefill" if any(len(span.token_ids) > 1 for span in plan.spans) else "decode"
        left[0] = 3 if now == phase else -1
        return execute(plan)

    def applying(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            _die()
        return apply(*arguments)

    runner.execute, local.apply = executing, applying


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
