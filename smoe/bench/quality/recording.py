"""Routes of a scoring run, kept as a route trace with logits."""

from collections.abc import Sequence

import numpy as np
import torch

from smoe.core.route_trace import DECODE, Array, RouteTrace


class Recording:
    """`see` is the route sink; `end_text` closes a sequence. All rows count as decode steps."""

    def __init__(self, *, fingerprint: str, num_experts: int, top_k: int, layers: Sequence[int]) -> None:
        self._fingerprint, self._num_experts, self._top_k = fingerprint, num_experts, top_k
        self._layers = tuple(layers)
        self._rows: dict[int, list[tuple[Array, Array, Array]]] = {layer: [] for layer in layers}
        self._token_ids: list[int] = []
        self._starts = [0]

    def see(self, layer: int, ids_TK: torch.Tensor, weights_TK: torch.Tensor, logits_TE: torch.Tensor) -> None:
        """One row."""
        self._rows[layer].append((ids_TK[0].numpy().copy(), weights_TK[0].numpy().copy(), logits_TE[0].numpy().copy()))

    def end_text(self, token_ids: Sequence[int]) -> None:
        """The rows seen since the last call are those of `token_ids`."""
        self._token_ids.extend(token_ids)
        self._starts.append(len(self._token_ids))

    def trace(self) -> RouteTrace:
        ids, weights, logits = (
            np.stack([np.stack([row[part] for row in self._rows[layer]]) for layer in self._layers])
            for part in range(3)
        )
        order = np.argsort(-weights, axis=-1, kind="stable")
        return RouteTrace(
            fingerprint=self._fingerprint,
            num_experts=self._num_experts,
            top_k=self._top_k,
            layers=self._layers,
            token_ids=np.array(self._token_ids, dtype=np.int32),
            sequence_start=np.array(self._starts, dtype=np.int64),
            phase=np.full(len(self._token_ids), DECODE, dtype=np.uint8),
            expert_ids=np.take_along_axis(ids, order, -1).astype(np.int16),
            expert_weights=np.take_along_axis(weights, order, -1).astype(np.float16),
            router_logits=logits.astype(np.float16),
        )
