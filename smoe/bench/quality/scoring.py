"""Teacher-forced scoring, one token a step: what a policy does to a wide batch is not what it does to decoding."""

import time
from collections.abc import Sequence

import numpy as np
import torch

from smoe.bench.quality.bootstrap import Nats
from smoe.models.batch import Batch, RouteSink
from smoe.models.decoder import Decoder
from smoe.models.kv import KVCache


class Scorer:
    """A decoder and the KV rows of one sequence."""

    def __init__(self, decoder: Decoder, *, max_tokens: int) -> None:
        self._decoder, self.max_tokens = decoder, max_tokens
        self._kv = KVCache(decoder.spec, num_rows=max_tokens, num_states=1, dtype=decoder.dtype)
        self.step_s: list[float] = []
        """Seconds of every forward so far."""

    @torch.inference_mode()
    def nats(self, token_ids: Sequence[int], *, route_sink: RouteSink | None = None) -> Nats:
        """-log p of every token but the first, given those before it: [len - 1].

        Every token is fed, the last one too, so that routes cover the whole text.
        """
        found = np.empty(len(token_ids) - 1)
        for past, token in enumerate(token_ids):
            logits_V = self.step(token, past, route_sink=route_sink)
            if past + 1 < len(token_ids):
                found[past] = float(logits_V.logsumexp(0) - logits_V[token_ids[past + 1]])
        return found

    @torch.inference_mode()
    def step(self, token: int, past: int, *, route_sink: RouteSink | None = None) -> torch.Tensor:
        """Logits [V] fp32 after `token`, which follows `past` tokens fed before."""
        batch = Batch.build([((token,), 0, past, 0)], route_sink=route_sink)
        start = time.perf_counter()
        logits_MV = self._decoder.forward(batch, self._kv)
        self.step_s.append(time.perf_counter() - start)
        return logits_MV[0]
