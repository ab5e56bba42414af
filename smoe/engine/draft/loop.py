"""Token by token ahead of the model, all sequences of a window together."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from smoe.core.step import SpanPlan
from smoe.engine.draft.accept import normalised_mass
from smoe.engine.draft.protocol import Proposal
from smoe.engine.random import draft_uniform
from smoe.engine.sampler import draw, numeric_error, on_host
from smoe.models.batch import Batch
from smoe.models.decoder import Decoder
from smoe.models.kv import KVCache
from smoe.offload.drafting import DraftWindow

Array = npt.NDArray[Any]
Clock = Callable[[], float]


class DraftLoop:
    """Rows and states of a sequence are at its span's place in `kv`; a drafted token gets the row after those known."""

    def __init__(
        self,
        decoder: Decoder,
        kv: KVCache,
        *,
        device: torch.device | str = "cpu",
        window: DraftWindow | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.decoder, self.kv, self.window = decoder, kv, window
        self._device, self._clock = device, clock

    def run(
        self, spans: Sequence[SpanPlan], limits: Sequence[int], first: Sequence[tuple[Sequence[int], int]]
    ) -> Proposal:
        """Up to limits[i] tokens after span i, drawn as its request draws. `first` are the tokens whose rows the draft
        lacks, the span's own last, and how many rows it has.

        A sequence whose logits are not finite ends there. Writes the rows of what is drafted, but for the last token.
        """
        tokens: list[list[int]] = [[] for _ in spans]
        mass: list[list[Array | None]] = [[] for _ in spans]
        pending = [tuple(ids) for ids, _ in first]
        pasts = [past for _, past in first]
        active = [i for i, limit in enumerate(limits) if limit > 0]
        if active and self.window is not None:
            self.window.begin(max(limits))
        while active:
            began = self._clock()
            rows_MV, best_M = on_host(self._forward(spans, active, pending, pasts))
            still = []
            for row_V, best, i in zip(rows_MV, best_M, active, strict=True):
                pasts[i] += len(pending[i])
                guess = self._guess(spans[i], len(tokens[i]), row_V, best)
                if guess is None:
                    continue
                tokens[i].append(guess[0])
                mass[i].append(guess[1])
                pending[i] = (guess[0],)
                if len(tokens[i]) < limits[i]:
                    still.append(i)
            active = still
            if self.window is not None:
                self.window.after_step(self._clock() - began)
        if self.window is not None and any(limits):
            self.window.before_verify()
        return Proposal(tuple(map(tuple, tokens)), tuple(map(tuple, mass)))

    def fill(self, span: SpanPlan, token_ids: Sequence[int], past: int) -> None:
        """Rows of tokens that are known, without a draft of what follows."""
        self._forward([span], [0], [tuple(token_ids)], [past])

    def _forward(
        self, spans: Sequence[SpanPlan], active: Sequence[int], pending: Sequence[tuple[int, ...]], pasts: Sequence[int]
    ) -> torch.Tensor:
        batch = Batch.build(
            [(pending[i], spans[i].kv_start, pasts[i], spans[i].state_slot) for i in active],
            prompt_lens=[spans[i].prompt_len for i in active],
            device=self._device,
        )
        return self.decoder.forward(batch, self.kv)

    def _guess(self, span: SpanPlan, place: int, row_V: Array, best: int) -> tuple[int, Array | None] | None:
        params, index = span.sample, span.sample_index + place
        assert params is not None, "only a span that samples is drafted for"
        if numeric_error(row_V, best, index) is not None:
            return None
        if params.greedy:
            return best, None
        mass_V = normalised_mass(row_V, params).astype(np.float32)
        return draw(mass_V, draft_uniform(span.seed, index)), mass_V
