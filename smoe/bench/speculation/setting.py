"""What the parts of the benchmark share: the model, its prompts, the sizes, and the result that they write to."""

import sys
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import torch

from smoe.bench.result import Figure, Result
from smoe.bench.speculation.costs import Costs
from smoe.bench.speculation.measure import Engine, Run
from smoe.bench.speculation.methods import Method
from smoe.bench.speculation.prompts import prompt_sets
from smoe.bench.speculation.size import Size
from smoe.engine.tokenizer import load_tokenizer
from smoe.models.kv import bytes_per_row
from smoe.models.loading import open_checkpoint

DTYPE = torch.bfloat16
PROMPT_TOKENS = 24
Prompt = tuple[int, ...]
Prompts = Mapping[str, Sequence[Prompt]]
"""By set."""


class Setting:
    """`costs` and `recall` are known once both have read the same texts."""

    costs: Costs
    recall: float

    def __init__(self, size: Size, folder: Path, result: Result, out: Path) -> None:
        self.size, self.folder, self.result = size, str(folder), result
        self.checkpoint = open_checkpoint(self.folder)
        self.spec = self.checkpoint.spec
        self._out, self._began = out, time.perf_counter()
        tokenizer = load_tokenizer(folder)
        assert tokenizer is not None
        self._encode = tokenizer.encode

    @cached_property
    def expert_bytes(self) -> int:
        """Of one expert; all are alike."""
        return self.checkpoint.expert_source(self.spec.moe_layers[0], 0).assembled_nbytes(DTYPE)

    @property
    def num_experts(self) -> int:
        """A layer."""
        return self.spec.moe(self.spec.moe_layers[0]).router.num_experts

    @property
    def all_bytes(self) -> int:
        """Of all experts."""
        return self.expert_bytes * self.num_experts * len(self.spec.moe_layers)

    @cached_property
    def own_bytes(self) -> int:
        """What a draft that shares nothing has a second time: weights beside the experts, and KV rows."""
        rows = PROMPT_TOKENS + self.size.tokens
        return self.checkpoint.params_nbytes(dtype=DTYPE) + rows * bytes_per_row(self.spec, DTYPE)

    def prompts(self, count: int, length: int = PROMPT_TOKENS) -> Prompts:
        """`count` of each set that is measured."""
        sets = prompt_sets(self._encode, count, length)
        return {key: sets[key] for key in list(sets)[: self.size.sets]}

    def engine(self, method: Method, percent: int, tier: str = "disk", seqs: int = 1) -> Engine:
        """With `percent` of the experts' bytes, the draft's among them."""
        budget = self.all_bytes * percent // 100
        return Engine(method.config(self.folder, budget, self.own_bytes, tier=tier, seqs=seqs))

    def add(self, *figures: Figure) -> None:
        for figure in figures:
            self.result.add(figure)

    def keep(self, part: str, found: object) -> None:
        """Raw samples of a part."""
        self.result.samples[part] = found

    def note(self, text: str) -> None:
        print(f"speculation {time.perf_counter() - self._began:5.0f} s  {text}", file=sys.stderr, flush=True)

    def save(self) -> None:
        """What has been found so far, so that what comes next loses nothing."""
        self.result.write(self._out)


def plain(runs: Mapping[str, Mapping[str, Sequence[Run]]]) -> dict[str, object]:
    """Raw samples, by method and set."""
    return {name: {key: [run.plain() for run in each] for key, each in sets.items()} for name, sets in runs.items()}
