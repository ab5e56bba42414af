"""Stand-ins for a runner: no tensors, but a cache that must have been filled for the answers to be right."""

import threading
import zlib
from pathlib import Path

from smoe.collectives.world import WorldPlan
from smoe.core.config import EngineConfig
from smoe.core.errors import CheckpointError, ConfigError, PlacementError, SmoeError
from smoe.core.model_info import ModelInfo
from smoe.core.placement import Placement
from smoe.core.stats import ExecutorStats, ExpertStats, RoutingStats
from smoe.core.step import ExpertsMoved, SampledToken, StepPlan, StepResult

VOCAB = 100
INFO = ModelInfo(
    name="fake",
    family="fake",
    fingerprint="f" * 8,
    dtype="float32",
    vocab_size=VOCAB,
    max_model_len=512,
    num_layers=1,
    moe_layers=(0,),
    num_experts=4,
    top_k=2,
    expert_bytes=8,
    dense_bytes=8,
    eos_token_ids=(),
    has_tokenizer=False,
)


class FakeExecutor:
    """The next token is a checksum of all rows of its sequence, so a row never prefilled changes every later token."""

    def __init__(self, kv_rows: int = 1024, die_after: int | None = None) -> None:
        self._rows: list[int | None] = [None] * kv_rows
        self._steps, self._die_after = 0, die_after
        self.closed = False
        self.placement: Placement | None = None

    def info(self) -> ModelInfo:
        return INFO

    @property
    def kv_rows(self) -> int:
        return len(self._rows)

    def execute(self, plan: StepPlan) -> StepResult:
        self._steps += 1
        if self._steps == self._die_after:
            raise RuntimeError("the device fell off the bus")
        tokens: list[tuple[SampledToken, ...]] = []
        for span in plan.spans:
            start = span.kv_start + span.past
            self._rows[start : start + len(span.token_ids)] = span.token_ids
            token_id = self._next(span.kv_start, start + len(span.token_ids))
            tokens.append(() if span.sample is None else (SampledToken(token_id),))
        return StepResult(tokens=tuple(tokens))

    def _next(self, start: int, end: int) -> int:
        return zlib.crc32(repr(self._rows[start:end]).encode()) % VOCAB

    def stats(self) -> ExecutorStats:
        experts = ExpertStats(hits=self._steps, budget_bytes=64, peak_bytes=32)
        return ExecutorStats(experts=experts, routing=RoutingStats(loads=((self._steps, 0),), local=self._steps))

    def resize_experts(self, memory: str) -> int | ConfigError:
        return int(memory) if memory.isdigit() else ConfigError("expert_memory", memory, "a number")

    def apply_placement(self, placement: Placement, name: str) -> ExpertsMoved | SmoeError:
        if placement.fingerprint != INFO.fingerprint:
            return PlacementError(f"{name}: fingerprint: {placement.fingerprint!r}")
        self.placement = placement
        return ExpertsMoved(experts=1, nbytes=8)

    def check_integrity(self) -> None:
        pass

    def shutdown(self) -> None:
        self.closed = True


def build(config: EngineConfig, world: WorldPlan | None) -> FakeExecutor:
    return FakeExecutor()


def build_fragile(config: EngineConfig, world: WorldPlan | None) -> FakeExecutor:
    return FakeExecutor(die_after=20)


class HangingExecutor(FakeExecutor):
    """Hangs in step `at`, and neither answers nor dies, until `release` is set."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.release = at, threading.Event()

    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        if self._steps == self.at:
            self.release.wait()
        return result


def build_hanging_once(config: EngineConfig, world: WorldPlan | None) -> FakeExecutor:
    """The first one built hangs; `config.model` is a folder in which it leaves a mark."""
    mark = Path(config.model) / "built"
    if mark.exists():
        return FakeExecutor()
    mark.touch()
    return HangingExecutor(at=20)


def build_held(config: EngineConfig, world: WorldPlan | None) -> FakeExecutor:
    """Is not done before there is a file `open` in the folder `config.model`."""
    while not (Path(config.model) / "open").exists():
        threading.Event().wait(0.01)
    return FakeExecutor()


def build_broken(config: EngineConfig, world: WorldPlan | None) -> FakeExecutor:
    raise CheckpointError("model.safetensors: tensor `x` is missing")


def build_buggy(config: EngineConfig, world: WorldPlan | None) -> FakeExecutor:
    raise KeyError("layers.0")


def build_killed(config: EngineConfig, world: WorldPlan | None) -> FakeExecutor:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def expected_tokens(prompt: list[int], count: int) -> list[int]:
    """What a FakeExecutor answers to a prompt."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(zlib.crc32(repr(tokens).encode()) % VOCAB)
    return tokens[len(prompt) :]
