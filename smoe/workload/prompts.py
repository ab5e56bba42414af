"""Prompts of given lengths, cut from real text; equal block names become equal tokens."""

from collections.abc import Iterator, Sequence

import numpy as np

from smoe.core.errors import ConfigError
from smoe.workload.plan import Plan
from smoe.workload.request_trace import Arrival


class PromptCutter:
    """Windows of `text` (token ids) at places drawn by `seed`; a window longer than the text begins again."""

    def __init__(self, text: Sequence[int], seed: int) -> None:
        if not text:
            raise ConfigError("prompts", "an empty text", "at least one token")
        self._text = np.asarray(text, dtype=np.int64)
        self._seed = seed

    def cut(self, plan: Plan) -> Iterator[tuple[int, ...]]:
        """The prompt of each arrival, in order. Its i-th block lies where it does in every other prompt."""
        for index, arrival in enumerate(plan.arrivals):
            if arrival.blocks:
                yield self._of_blocks(arrival, plan.block_tokens)
            else:
                yield tuple(self._window((0, index), arrival.prompt_tokens).tolist())

    def _of_blocks(self, arrival: Arrival, width: float) -> tuple[int, ...]:
        ends = [min(int((i + 1) * width), arrival.prompt_tokens) for i in range(len(arrival.blocks))]
        ends[-1] = arrival.prompt_tokens
        tokens: list[int] = []
        for name, end in zip(arrival.blocks, ends, strict=True):
            tokens += self._window((1, name), end - len(tokens)).tolist()
        return tuple(tokens)

    def _window(self, key: tuple[int, int], length: int) -> np.ndarray:
        start = int(np.random.default_rng([self._seed, *key]).integers(len(self._text)))
        return self._text.take(np.arange(start, start + length), mode="wrap")
