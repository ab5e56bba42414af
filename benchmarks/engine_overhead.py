"""Microseconds that one engine step takes beside the model's arithmetic: `python benchmarks/engine_overhead.py`.

`core` runs EngineCore over an executor that answers at once; `runner` adds batch building and sampling over a
decoder that returns the same logits every time. Greedy, with the built-in tokenizer; the median of the rounds.
"""

import statistics
import time

import torch

from smoe.core.config import EngineConfig
from smoe.core.model_info import ModelInfo
from smoe.core.request import Request
from smoe.core.sampling import SamplingParams
from smoe.core.stats import ExpertStats
from smoe.core.step import Executor, SampledToken, StepPlan, StepResult
from smoe.engine.build import model_info
from smoe.engine.core import EngineCore
from smoe.engine.plan import plan_memory
from smoe.engine.runner import Runner
from smoe.engine.tokenizer import load_tokenizer
from smoe.models.batch import Batch
from smoe.models.kv import KVCache
from smoe.models.loading import open_checkpoint
from smoe.models.spec import DecoderSpec

STEPS, ROUNDS, BATCHES = 400, 9, (1, 8, 32)
TOKEN = 300


class NoOpExecutor:
    kv_rows = 32 * 1024

    def __init__(self, info: ModelInfo) -> None:
        self._info = info

    def info(self) -> ModelInfo:
        return self._info

    def execute(self, plan: StepPlan) -> StepResult:
        return StepResult(tokens=tuple([SampledToken(TOKEN) for _ in plan.spans]))

    def expert_stats(self) -> ExpertStats:
        return ExpertStats()

    def check_integrity(self) -> None:
        return

    def shutdown(self) -> None:
        return


class NoOpDecoder:
    def __init__(self, spec: DecoderSpec) -> None:
        self.spec = spec
        self._logits_MV = torch.zeros(max(BATCHES), spec.vocab)
        self._logits_MV[:, TOKEN] = 1.0

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        return self._logits_MV[: len(batch.logit_rows_M)]


class NoOpBank(NoOpExecutor):
    def apply(self, *_: object) -> torch.Tensor:
        raise AssertionError

    def stats(self) -> ExpertStats:
        return ExpertStats()

    def close(self) -> None:
        return


def main() -> None:
    config = EngineConfig(max_num_seqs=max(BATCHES))
    checkpoint = open_checkpoint(config.model)
    tokenizer = load_tokenizer(checkpoint.folder)
    info = model_info(checkpoint, plan_memory(checkpoint, config), tokenizer)
    kv = KVCache(checkpoint.spec, num_rows=NoOpExecutor.kv_rows, num_states=max(BATCHES), dtype=torch.float32)
    runner = Runner(NoOpDecoder(checkpoint.spec), kv, NoOpBank(info), info)
    executors: dict[str, Executor] = {"core": NoOpExecutor(info), "runner": runner}
    for name, executor in executors.items():
        core = EngineCore(executor, tokenizer, max_num_seqs=max(BATCHES), max_num_batched_tokens=2048)
        for batch in BATCHES:
            rounds = [_us_per_step(core, batch) for _ in range(ROUNDS)]
            wall = [wall for wall, _ in rounds]
            cpu = statistics.median(cpu for _, cpu in rounds)
            spread = f"{min(wall):.1f}..{max(wall):.1f}"
            print(f"{name:8} batch {batch:3}: {statistics.median(wall):7.1f} us/step ({spread}), CPU {cpu:.1f}")


def _us_per_step(core: EngineCore, batch: int) -> tuple[float, float]:
    """Wall time, and CPU time of this thread, which other load on the machine disturbs less."""
    params = SamplingParams(max_tokens=STEPS + 2, ignore_eos=True)
    core.add([Request(request_id=str(i), prompt_token_ids=(5, 6, 7), params=params) for i in range(batch)])
    core.step()
    wall, cpu = time.perf_counter(), time.thread_time()
    for _ in range(STEPS):
        core.step()
    wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
    while core.has_work:
        core.step()
    return wall / STEPS * 1e6, cpu / STEPS * 1e6


if __name__ == "__main__":
    main()
