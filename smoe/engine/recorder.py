"""Records the routes of chosen requests into a route trace file, or a folder of parts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from smoe.core.errors import ConfigError
from smoe.core.model_info import ModelInfo
from smoe.core.route_parts import write_part
from smoe.core.route_trace import DECODE, PREFILL, Array, RouteTrace, write_route_trace
from smoe.core.step import StepPlan
from smoe.models.batch import RouteSink


@dataclass(slots=True)
class _Recorded:
    """One sequence, a piece a step: token ids [n], phase [n], expert ids and weights [L, n, k], logits and
    look-ahead [L, n, E]. `order` counts sequences by their start."""

    request_id: str
    order: int
    num_tokens: int = 0
    token_ids: list[Array] = field(default_factory=list)
    phase: list[Array] = field(default_factory=list)
    ids: list[Array] = field(default_factory=list)
    weights: list[Array] = field(default_factory=list)
    logits: list[Array] = field(default_factory=list)
    lookahead: list[Array] = field(default_factory=list)


class RouteRecorder:
    """Keeps the routes of spans marked `record` in memory (about 4 L k bytes a token, and 2 L E with logits) until
    `write`; or, with `part_tokens`, until that many tokens of ended sequences are there, and then writes them as a
    part (smoe.core.route_parts) into the folder `path`, labelled by request id.

    `begin` gives the sink for one forward, `commit` keeps what it saw; a forward that fails is not committed.
    """

    def __init__(
        self, path: str | Path, info: ModelInfo, *, logits: bool = False, part_tokens: int | None = None
    ) -> None:
        """Raises ConfigError when no file can be written at `path`, which otherwise would show only at the end."""
        self._path, self._info, self._logits, self._part_tokens = Path(path), info, logits, part_tokens
        if part_tokens is None and not self._path.parent.is_dir():
            raise ConfigError("record_routes", str(path), "a file in a folder that exists")
        if part_tokens is not None and not self._path.is_dir():
            raise ConfigError("record_routes", str(path), "a folder that exists, for parts")
        self._num_started = 0
        self._running: dict[str, _Recorded] = {}
        self._ended: list[_Recorded] = []
        self._seen: dict[int, tuple[Array, Array, Array | None]] = {}
        self._ahead: dict[int, Array] = {}

    def next_step(self, plan: StepPlan) -> None:
        """Before the forwards of a step: sequences that it leaves out have ended, since all that run advance."""
        going_on = {span.request_id for span in plan.spans}
        for request_id in [name for name in self._running if name not in going_on]:
            self._ended.append(self._running.pop(request_id))
        if self._part_tokens is not None and sum(s.num_tokens for s in self._ended) >= self._part_tokens:
            self._write_part(self._ended)
            self._ended = []

    def begin(self, plan: StepPlan) -> RouteSink | None:
        """What to hand to the batch of this plan; None when nothing of it is to be recorded."""
        self._seen, self._ahead = {}, {}
        return self._see if any(span.record for span in plan.spans) else None

    def commit(self, plan: StepPlan, kept: Sequence[int]) -> None:
        """The forward of `plan` has run, and of each span so many rows hold."""
        if not self._seen:
            return
        by_layer = [self._seen[layer] for layer in self._info.moe_layers]
        first = 0
        for span, count in zip(plan.spans, kept, strict=True):
            rows = slice(first, first + count)
            first += len(span.token_ids)
            if not span.record:
                continue
            if span.past == 0 or span.request_id not in self._running:
                # One that begins again while it runs has lost its caches: what it recorded comes again.
                self._running[span.request_id] = _Recorded(span.request_id, self._num_started)
                self._num_started += 1
            sequence = self._running[span.request_id]
            sequence.num_tokens += count
            sequence.token_ids.append(np.array(span.token_ids[:count], dtype=np.int32))
            sequence.phase.append(_phase(span.past, count, span.prompt_len, span.sample_index))
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
        """Writes what is not yet written; sequences in the order in which they started. Without any, no file.

        A sequence that met a numeric error has no routes to speak of and is left out.
        """
        sequences = sorted([*self._ended, *self._running.values()], key=lambda sequence: sequence.order)
        if self._part_tokens is not None:
            self._write_part(sequences)
        elif (trace := self._trace(sequences)) is not None:
            write_route_trace(self._path, trace)

    def _write_part(self, sequences: Sequence[_Recorded]) -> None:
        if (trace := self._trace(sequences)) is not None:
            write_part(self._path, trace)

    def _trace(self, recorded: Sequence[_Recorded]) -> RouteTrace | None:
        sequences = [s for s in recorded if all(np.isfinite(piece).all() for piece in s.weights)]
        if not sequences:
            return None
        token_ids = [np.concatenate(sequence.token_ids) for sequence in sequences]
        ids = np.concatenate([piece for sequence in sequences for piece in sequence.ids], axis=1)
        weights = np.concatenate([piece for sequence in sequences for piece in sequence.weights], axis=1)
        logits = [piece for sequence in sequences for piece in sequence.logits]
        lookahead = [piece for sequence in sequences for piece in sequence.lookahead]
        order = np.argsort(-weights, axis=-1, kind="stable")
        return RouteTrace(
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
            labels=None if self._part_tokens is None else tuple(sequence.request_id for sequence in sequences),
        )

    def _see(self, layer: int, ids_TK: torch.Tensor, weights_TK: torch.Tensor, logits_TE: torch.Tensor) -> None:
        ids = ids_TK.to("cpu", torch.int16, copy=True).numpy()
        logits = logits_TE.to("cpu", torch.float16, copy=True).numpy() if self._logits else None
        self._seen[layer] = (ids, weights_TK.to("cpu", torch.float16, copy=True).numpy(), logits)


def _phase(past: int, count: int, prompt_len: int, sample_index: int) -> Array:
    """[n] u8. By place where the prompt's length is told: a sequence that lost its caches prefills its answer too."""
    if prompt_len == 0:
        return np.full(count, DECODE if sample_index > 0 else PREFILL, dtype=np.uint8)
    return np.where(np.arange(past, past + count) < prompt_len, PREFILL, DECODE).astype(np.uint8)
