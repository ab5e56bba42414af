"""Time of a decode step under each policy, on a model whose bytes, not its arithmetic, bound it."""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from smoe.bench.quality.contenders import Contender
from smoe.bench.quality.scoring import Scorer
from smoe.core.config import EngineConfig
from smoe.core.stats import ExpertStats
from smoe.models.decoder import Decoder
from smoe.models.loading import Checkpoint, open_checkpoint
from smoe.offload.build import make_bank


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """`step_s` of one token each, after a warm-up; `experts` counts over the same steps."""

    step_s: Sequence[float]
    experts: ExpertStats

    @property
    def mean_s(self) -> float:
        """The mean, not the median: some tokens miss much more than others."""
        return sum(self.step_s) / len(self.step_s)


def measure(
    folder: Path, contenders: Sequence[Contender], token_ids: Sequence[int], *, warm_up: int, expert_memory: str
) -> dict[str, Timing]:
    """Every contender decodes `token_ids` in bf16 through an offloaded bank that reads from disk; the first `warm_up`
    steps fill its slots and do not count. Raises as loading a model does."""
    checkpoint = open_checkpoint(folder)
    params = checkpoint.params(dtype=torch.bfloat16)
    timings = {}
    for contender in contenders:
        timings[contender.name] = _measure(checkpoint, params, contender, token_ids, warm_up, expert_memory)
        gc.collect()
    return timings


def _measure(
    checkpoint: Checkpoint,
    params: Mapping[str, torch.Tensor],
    contender: Contender,
    token_ids: Sequence[int],
    warm_up: int,
    expert_memory: str,
) -> Timing:
    config = EngineConfig(
        model=str(checkpoint.folder),
        dtype="bfloat16",
        expert_memory=expert_memory,
        expert_policy=contender.policy,
    )
    bank = make_bank(checkpoint, config, torch.bfloat16)
    try:
        decoder = Decoder(checkpoint.spec, params, bank, dtype=torch.bfloat16)
        scorer = Scorer(decoder, max_tokens=len(token_ids))
        before = ExpertStats()

        def note_warm(layer: int, *_: torch.Tensor) -> None:
            nonlocal before
            if len(scorer.step_s) == warm_up and layer == checkpoint.spec.moe_layers[0]:
                before = bank.stats()

        scorer.nats(token_ids, route_sink=note_warm)
        return Timing(step_s=scorer.step_s[warm_up:], experts=bank.stats().since(before))
    finally:
        bank.close()


def describe(timing: Timing) -> dict[str, object]:
    steps = len(timing.step_s)
    return {
        "mean_ms": 1000 * timing.mean_s,
        "median_ms": 1000 * median(timing.step_s),
        "step_s": list(timing.step_s),
        "bytes_per_token": timing.experts.bytes_moved / steps,
        "wait_ms_per_token": 1000 * timing.experts.wait_s / steps,
        "misses_per_token": timing.experts.misses / steps,
        "substituted_per_token": timing.experts.substituted / steps,
    }
