"""Time of a decode step under each policy, on a model whose bytes, not its arithmetic, bound it."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch

from smoe.bench.quality.contenders import Contender
from smoe.bench.quality.scoring import Scorer
from smoe.core.config import EngineConfig
from smoe.core.stats import ExpertStats
from smoe.models.bank import ExpertBank
from smoe.models.decoder import Decoder
from smoe.models.loading import Checkpoint, open_checkpoint
from smoe.offload.build import make_bank

BLOCK = 8
"""Steps of one contender before the next one's turn: reads in the background are its own all but at the seams."""


@dataclass(slots=True, kw_only=True)
class Timing:
    """Seconds of one step after a warm-up, by block; `experts` counts over the same steps."""

    blocks: list[list[float]] = field(default_factory=list)
    experts: ExpertStats = field(default_factory=ExpertStats)

    @property
    def step_s(self) -> list[float]:
        return [seconds for block in self.blocks for seconds in block]

    @property
    def mean_s(self) -> float:
        """The mean, not the median: some tokens miss much more than others."""
        return sum(self.step_s) / len(self.step_s)


class _Runner:
    """One contender with a bank of its own."""

    def __init__(self, contender: Contender, bank: ExpertBank, scorer: Scorer) -> None:
        self.name, self._bank, self._scorer = contender.name, bank, scorer
        self.timing = Timing()
        self._warm = ExpertStats()

    def warm_up(self, token_ids: Sequence[int]) -> None:
        for past, token in enumerate(token_ids):
            self._scorer.step(token, past)
        self._warm = self._bank.stats()

    def run(self, token_ids: Sequence[int], past: int) -> None:
        before = len(self._scorer.step_s)
        for offset, token in enumerate(token_ids):
            self._scorer.step(token, past + offset)
        self.timing.blocks.append(self._scorer.step_s[before:])
        self.timing.experts = self._bank.stats().since(self._warm)


def measure(
    folder: Path, contenders: Sequence[Contender], token_ids: Sequence[int], *, warm_up: int, expert_memory: str
) -> dict[str, Timing]:
    """Every contender decodes `token_ids` in bf16 through an offloaded bank that reads from disk; the first `warm_up`
    steps fill its slots and do not count. They take turns, so that a busy neighbour slows all of them; so all their
    slots are in memory together. Raises as loading a model does."""
    checkpoint = open_checkpoint(folder)
    params = checkpoint.params(dtype=torch.bfloat16)
    with ExitStack() as stack:
        runners = [_open(checkpoint, params, c, len(token_ids), expert_memory, stack) for c in contenders]
        for runner in runners:
            runner.warm_up(token_ids[:warm_up])
        for past in range(warm_up, len(token_ids), BLOCK):
            for runner in runners:
                runner.run(token_ids[past : past + BLOCK], past)
    return {runner.name: runner.timing for runner in runners}


def _open(
    checkpoint: Checkpoint,
    params: Mapping[str, torch.Tensor],
    contender: Contender,
    max_tokens: int,
    expert_memory: str,
    stack: ExitStack,
) -> _Runner:
    config = EngineConfig(
        model=str(checkpoint.folder), dtype="bfloat16", expert_memory=expert_memory, expert_policy=contender.policy
    )
    bank = make_bank(checkpoint, config, torch.bfloat16)
    stack.callback(bank.close)
    decoder = Decoder(checkpoint.spec, params, bank, dtype=torch.bfloat16)
    return _Runner(contender, bank, Scorer(decoder, max_tokens=max_tokens))


def describe(timing: Timing) -> dict[str, object]:
    steps = len(timing.step_s)
    return {
        "mean_ms": 1000 * timing.mean_s,
        "median_ms": 1000 * median(timing.step_s),
        "blocks_s": timing.blocks,
        "bytes_per_token": timing.experts.bytes_moved / steps,
        "wait_ms_per_token": 1000 * timing.experts.wait_s / steps,
        "misses_per_token": timing.experts.misses / steps,
        "substituted_per_token": timing.experts.substituted / steps,
        "admitted_per_token": timing.experts.admitted / steps,
    }
