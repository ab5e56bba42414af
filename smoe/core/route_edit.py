"""Cutting route traces along sequences, and putting them together."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from smoe.core.errors import ConfigError, TraceError
from smoe.core.route_trace import OPTIONAL, PER_LAYER, Array, RouteTrace


def select_sequences(trace: RouteTrace, sequences: Sequence[int], *, longest: int | None = None) -> RouteTrace:
    """These sequences in this order, each cut to its first `longest` tokens. Indices must be in range."""
    starts = trace.sequence_start
    lengths = [int(starts[s + 1] - starts[s]) for s in sequences]
    if longest is not None:
        lengths = [min(length, longest) for length in lengths]
    pieces = [np.arange(starts[s], starts[s] + length) for s, length in zip(sequences, lengths, strict=True)]
    rows = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)
    return take_rows(trace, rows, np.cumsum([0, *lengths], dtype=np.int64))


def take_rows(trace: RouteTrace, rows: Array, sequence_start: Array) -> RouteTrace:
    """These tokens, in sequences that start at `sequence_start` among them; none is empty or made of several."""
    arrays: dict[str, Any] = {field: getattr(trace, field) for field in PER_LAYER}
    labels = trace.labels
    if labels is not None:
        old = np.searchsorted(trace.sequence_start, rows[sequence_start[:-1]], side="right") - 1
        labels = tuple(labels[int(sequence)] for sequence in old)
    return replace(
        trace,
        labels=labels,
        token_ids=trace.token_ids[rows],
        phase=trace.phase[rows],
        sequence_start=sequence_start,
        **{field: array[:, rows] for field, array in arrays.items() if array is not None},
    )


def sample_sequences(trace: RouteTrace, tokens: int, *, longest: int | None = None, seed: int = 0) -> RouteTrace:
    """Sequences in an order drawn by `seed`, each cut to `longest`, until there are `tokens` tokens."""
    starts = trace.sequence_start
    chosen: list[int] = []
    total = 0
    for sequence in np.random.default_rng(seed).permutation(trace.num_sequences).tolist():
        if total >= tokens:
            break
        length = int(starts[sequence + 1] - starts[sequence])
        total += length if longest is None else min(length, longest)
        chosen.append(sequence)
    sampled = select_sequences(trace, chosen, longest=longest)
    if total <= tokens:
        return sampled
    start = np.minimum(sampled.sequence_start, tokens)
    return take_rows(sampled, np.arange(tokens), start)


def split(trace: RouteTrace, fraction: float, *, seed: int = 0) -> tuple[RouteTrace, RouteTrace]:
    """Two traces: about `fraction` of the sequences, drawn by `seed`, and the others; both in the original order.

    Raises ConfigError where one of them would be empty.
    """
    if not 0.0 < fraction < 1.0:
        raise ConfigError("fraction", fraction, "above 0, below 1")
    total = trace.num_sequences
    if total < 2:
        raise ConfigError("trace", f"{total} sequences", "at least 2 to split")
    count = min(max(round(fraction * total), 1), total - 1)
    order = np.random.default_rng(seed).permutation(total)
    first, second = sorted(order[:count].tolist()), sorted(order[count:].tolist())
    return select_sequences(trace, first), select_sequences(trace, second)


def merge(traces: Sequence[RouteTrace], names: Sequence[str]) -> RouteTrace:
    """One after the other; sequences without a label get an empty one where others have some.

    Raises TraceError, by `names`, unless all are of one model and hold the same arrays."""
    first = traces[0]
    for trace, name in zip(traces[1:], names[1:], strict=True):
        for field in ("fingerprint", "num_experts", "top_k", "layers"):
            ours, theirs = getattr(first, field), getattr(trace, field)
            if ours != theirs:
                raise TraceError(f"{name}: {field}: {theirs!r} (as in {names[0]}: {ours!r})")
        for field in OPTIONAL:
            if (getattr(first, field) is None) != (getattr(trace, field) is None):
                has, lacks = (names[0], name) if getattr(trace, field) is None else (name, names[0])
                raise TraceError(f"{lacks}: {field}: missing ({has} has it)")
    labels: tuple[str, ...] | None = None
    if any(trace.labels is not None for trace in traces):
        labels = tuple(label for trace in traces for label in (trace.labels or ("",) * trace.num_sequences))
    lengths = [np.diff(trace.sequence_start) for trace in traces]
    per_layer: dict[str, Any] = {}
    for field in PER_LAYER:
        if getattr(first, field) is not None:
            per_layer[field] = np.concatenate([getattr(trace, field) for trace in traces], axis=1)
    return replace(
        first,
        labels=labels,
        token_ids=np.concatenate([trace.token_ids for trace in traces]),
        phase=np.concatenate([trace.phase for trace in traces]),
        sequence_start=np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64),
        **per_layer,
    )
