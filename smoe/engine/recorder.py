"""Records the routes of chosen requests into a route trace file."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from smoe.core.errors import ConfigError
from smoe.core.model_info import ModelInfo
from smoe.core.route_trace import DECODE, PREFILL, Array, RouteTrace, write_route_trace
from smoe.core.step import StepPlan
from smoe.models.batch import RouteSink


@dataclass(slots=True)
class _Recorded:
    """One sequence, a piece a step: token ids [n], phase [n], expert ids and weights [L, n, k], logits and
    look-ahead [L, n, E]."""

    token_ids: list[Array] = field(default_factory=list)
    phase: list[Array] = field(default_factory=list)
    ids: list[Array] = field(default_factory=list)
    weights: list[Array] = field(default_factory=list)
    logits: list[Array] = field(default_factory=list)
    lookahead: list[Array] = field(default_factory=list)


class RouteRecorder:
    """Keeps the routes of spans marked `record` in memory (about 4 L k bytes a token, and 2 L E with logits) until
    `write`.

    `begin` gives the sink for one forward, `commit` keeps what it saw; a forward that fails is not committed.
    """

    def __init__(self, path: str | Path, info: ModelInfo, *, logits: bool = False) -> None:
        """Raises ConfigError when no file can be written at `path`, which otherwise would show only at the end."""
        self._path, self._info, self._logits = Path(path), info, logits
        if not self._path.parent.is_dir():
            raise ConfigError("record_routes", str(path), "a file in a folder that exists")
        self._layer_index = {layer: index for index, layer in enumerate(info.moe_layers)}
        self._sequences: list[_Recorded] = []
        self._current: dict[str, _Recorded] = {}
        self._seen: dict[int, tuple[Array, Array, Array | None]] = {}
        self._ahead: dict[int, Array] = {}

    def begin(self, plan: StepPlan) -> RouteSink | None:
        """What to hand to the batch of this plan; None when nothing of it is to be recorded."""
        self._seen, self._ahead = {}, {}
        return self._see if any(span.record for span in plan.spans) else None

    def commit(self, plan: StepPlan) -> None:
        """The forward of `plan` has run."""
        if not self._seen:
            return
        by_layer = [self._seen[layer] for layer in self._info.moe_layers]
        first = 0
        for span in plan.spans:
            rows = slice(first, first + len(span.token_ids))
            first = rows.stop
            if not span.record:
                continue
            if span.past == 0 or span.request_id not in self._current:
                self._current[span.request_id] = _Recorded()
                self._sequences.append(self._current[span.request_id])
            sequence = self._current[span.request_id]
            phase = DECODE if span.sample_index > 0 else PREFILL
            sequence.token_ids.append(np.array(span.token_ids, dtype=np.int32))
            sequence.phase.append(np.full(len(span.token_ids), phase, dtype=np.uint8))
            sequence.ids.append(np.stack([ids[rows] for ids, _, _ in by_layer]))
            sequence.weights.append(np.stack([weights[rows] for _, weights, _ in by_layer]))
            if self._logits:
                sequence.logits.append(np.stack([logits[rows] for _, _, logits in by_layer if logits is not None]))
            if self._ahead:
                ahead = [self._ahead[layer][rows] for layer in self._info.moe_layers[:-1]]
                sequence.lookahead.append(np.stack([*ahead, np.zeros_like(ahead[0])]))
        self._seen, self._ahead = {}, {}

    def see_lookahead(self, layer: int, logits_TE: torch.Tensor) -> None:
        """Of the forward begun last: `layer`'s look-ahead, f16. All MoE layers but the last tell theirs, or none."""
        self._ahead[layer] = logits_TE.to("cpu", torch.float16, copy=True).numpy()

    def write(self) -> None:
        """Writes the file; sequences in the order in which they started. Without any, no file.

        A sequence that met a numeric error has no routes to speak of and is left out.
        """
        sequences = [s for s in self._sequences if all(np.isfinite(piece).all() for piece in s.weights)]
        if not sequences:
            return
        token_ids = [np.concatenate(sequence.token_ids) for sequence in sequences]
        ids = np.concatenate([piece for sequence in sequences for piece in sequence.ids], axis=1)
        weights = np.concatenate([piece for sequence in sequences for piece in sequence.weights], axis=1)
        logits = [piece for sequence in sequences for piece in sequence.logits]
        lookahead = [piece for sequence in sequences for piece in sequence.lookahead]
        order = np.argsort(-weights, axis=-1, kind="stable")
        trace = RouteTrace(
            fingerprint=self._info.fingerprint,
            num_experts=self._info.num_experts,
            top_k=self._info.top_k,
            layers=self._info.moe_layers,
            token_ids=np.concatenate(token_ids),
            sequence_start=np.cumsum([0, *map(len, token_ids)], dtype=np.int64),
            phase=np.concatenate([piece for sequence in sequences for piece in sequence.phase]),
            expert_ids=np.take_along_axis(ids, order, -1),
            expert_weights=np.take_along_axis(weights, order, -1),
            router_logits=np.concatenate(logits, axis=1) if logits else None,
            lookahead_logits=np.concatenate(lookahead, axis=1) if lookahead else None,
        )
        write_route_trace(self._path, trace)

    def _see(self, layer: int, ids_TK: torch.Tensor, weights_TK: torch.Tensor, logits_TE: torch.Tensor) -> None:
        ids = ids_TK.to("cpu", torch.int16, copy=True).numpy()
        logits = logits_TE.to("cpu", torch.float16, copy=True).numpy() if self._logits else None
        self._seen[layer] = (ids, weights_TK.to("cpu", torch.float16, copy=True).numpy(), logits)
