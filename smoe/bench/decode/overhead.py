"""What one engine step costs beside the model's arithmetic, in this process and through actors."""

import time
from statistics import median

import torch

from smoe.bench.decode.builtin import prompts
from smoe.bench.decode.own import run_batch
from smoe.bench.result import Figure, Result
from smoe.core.client import EngineClient
from smoe.core.config import EngineConfig
from smoe.core.request import Request
from smoe.core.sampling import SamplingParams
from smoe.engine.core import EngineCore
from smoe.engine.model_facts import planned_model_info
from smoe.engine.plan import plan_memory
from smoe.engine.runner import Runner
from smoe.engine.tokenizer import load_tokenizer
from smoe.models.bank import InMemory
from smoe.models.batch import Batch
from smoe.models.kv import KVCache
from smoe.models.loading import open_checkpoint
from smoe.models.spec import DecoderSpec

STEPS, BATCHES = 400, (1, 8, 32)
TOKEN = 300
GOAL_STEP_MS, GOAL_ACTORS_MS = 1.0, 0.5


class NoOpDecoder:
    """The same logits every time: a step over it is the step's overhead."""

    def __init__(self, spec: DecoderSpec) -> None:
        self.spec = spec
        self._logits_MV = torch.zeros(max(BATCHES), spec.vocab)
        self._logits_MV[:, TOKEN] = 1.0

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        return self._logits_MV[: len(batch.logit_rows_M)]


class NoOpBank(InMemory):
    def apply(self, *_: object) -> torch.Tensor:
        raise AssertionError("a no-op decoder asks for no experts")

    def close(self) -> None:
        return


def core_without_arithmetic() -> EngineCore:
    config = EngineConfig(max_num_seqs=max(BATCHES))
    checkpoint = open_checkpoint(config.model)
    tokenizer = load_tokenizer(checkpoint.folder)
    info = planned_model_info(checkpoint, plan_memory(checkpoint, config), tokenizer)
    kv = KVCache(checkpoint.spec, num_rows=32 * 1024, num_states=max(BATCHES), dtype=torch.float32)
    runner = Runner(NoOpDecoder(checkpoint.spec), kv, NoOpBank(), info)
    return EngineCore(runner, tokenizer, max_num_seqs=max(BATCHES), max_num_batched_tokens=2048)


def measure_step(*, repeats: int, result: Result) -> None:
    """Scheduling, batch building, sampling and text of greedy steps over a decoder that computes nothing."""
    core = core_without_arithmetic()
    for batch in BATCHES:
        times = [ms_per_step(core, batch) for _ in range(repeats + 1)][1:]
        result.samples[f"step_overhead_ms_batch{batch}"] = times
        goal = GOAL_STEP_MS if batch == 1 else None
        result.add(
            Figure(
                figure=f"engine step without model arithmetic, batch {batch}",
                value=median(times),
                unit="ms",
                goal=None if goal is None else f"< {goal:g} ms",
                met=None if goal is None else median(times) < goal,
            )
        )


def measure_actors(local: EngineClient, actors: EngineClient, *, steps: int, repeats: int, result: Result) -> None:
    """Decode steps of the built-in model at batch 1, alternating in-process and actors."""
    ids = prompts(1, 32, local.info().vocab_size, seed=0)
    samples: dict[str, list[float]] = {"in_process": [], "actors": []}
    for repeat in range(repeats + 1):
        for name, client in (("in_process", local), ("actors", actors)):
            timing = run_batch(client, ids, steps)
            # Deltas of several steps may arrive in one poll, so the mean over the answer counts and not one gap.
            mean_ms = 1000 * sum(timing.step_s) / (steps - 1)
            if repeat:
                samples[name].append(mean_ms)
    result.samples["builtin_step_ms"] = samples
    own, through = median(samples["in_process"]), median(samples["actors"])
    more = through - own
    result.add(
        Figure(
            figure="engine step through actors, more than in-process, batch 1",
            value=more,
            unit="ms",
            goal=f"< {GOAL_ACTORS_MS:g} ms",
            met=more < GOAL_ACTORS_MS,
            bound=f"in-process {own:.2f} ms, actors {through:.2f} ms a step",
        )
    )


def ms_per_step(core: EngineCore, batch: int) -> float:
    params = SamplingParams(max_tokens=STEPS + 2, ignore_eos=True)
    core.add([Request(request_id=str(i), prompt_token_ids=(5, 6, 7), params=params) for i in range(batch)])
    core.step()
    started = time.perf_counter()
    for _ in range(STEPS):
        core.step()
    elapsed = time.perf_counter() - started
    while core.has_work:
        core.step()
    return elapsed / STEPS * 1e3
