"""What actors add to one engine step, with a runner that does nothing: python benchmarks/actor_overhead.py [STEPS]

In process, through the socket link, and through Ray's compiled graph; also the processor time that an idle group
takes, since a compiled graph waits by spinning.
"""

import sys
import time
from statistics import median

import psutil
from rich.console import Console
from rich.table import Table

from smoe.actors.client import RayClient
from smoe.actors.group import GroupPlan
from smoe.core.client import EngineClient
from smoe.core.config import EngineConfig
from smoe.core.model_info import ModelInfo
from smoe.core.request import Request
from smoe.core.sampling import SamplingParams
from smoe.core.stats import ExpertStats
from smoe.core.step import SampledToken, StepPlan, StepResult
from smoe.engine.build import build_core
from smoe.engine.local import LocalClient

ROUNDS = 5
IDLE_S = 2.0
GOAL_MS = 0.5


class NoRunner:
    """Answers every step with the same token."""

    kv_rows = 1 << 20

    def info(self) -> ModelInfo:
        return ModelInfo(
            name="none", family="none", fingerprint="0", dtype="float32", vocab_size=4096, max_model_len=1 << 20,
            num_layers=1, moe_layers=(0,), num_experts=1, top_k=1, expert_bytes=0, dense_bytes=0, eos_token_ids=(),
            has_tokenizer=True,
        )  # fmt: skip

    def execute(self, plan: StepPlan) -> StepResult:
        return StepResult(tokens=tuple(None if s.sample is None else SampledToken(300) for s in plan.spans))

    def expert_stats(self) -> ExpertStats:
        return ExpertStats()

    def check_integrity(self) -> None:
        pass

    def shutdown(self) -> None:
        pass


def build(config: EngineConfig) -> NoRunner:
    return NoRunner()


def step_ms(client: EngineClient, steps: int) -> float:
    """Milliseconds a step of one request, submit to last delta at the client; median of rounds."""
    rounds = []
    for number in range(ROUNDS):
        params = SamplingParams(max_tokens=steps)
        start = time.perf_counter()
        client.submit([Request(request_id=f"r{number}", prompt_token_ids=(1,), params=params)])
        while client.poll():
            pass
        rounds.append((time.perf_counter() - start) / steps * 1e3)
    return median(rounds)


def idle_cores() -> float:
    """Processor time over wall time of this process's children."""

    def used() -> float:
        times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
        return sum(t.user + t.system for t in times)

    before = used()
    time.sleep(IDLE_S)
    return (used() - before) / IDLE_S


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    config = EngineConfig()
    local = LocalClient(build_core(config, NoRunner()))
    base = step_ms(local, steps)
    local.shutdown()
    table = Table(title=f"one request, {steps} steps, median of {ROUNDS} rounds; goal: below +{GOAL_MS} ms")
    for column in ("engine", "ms a step", "more than in process", "cores used while idle"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    table.add_row("in process", f"{base:.3f}", "", "")
    for link in ("socket", "compiled"):
        client = RayClient(config, GroupPlan(build=build, link=link))
        try:
            took, idle = step_ms(client, steps), idle_cores()
        finally:
            client.shutdown()
        table.add_row(f"actors, {link} link", f"{took:.3f}", f"{took - base:+.3f}", f"{idle:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
