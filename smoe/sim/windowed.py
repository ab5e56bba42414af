"""A trace cut into windows, as a draft that is always right would have them verified: `rows` tokens in one forward."""

from dataclasses import replace

import numpy as np

from smoe.core.route_trace import Array, RouteTrace


def windowed(trace: RouteTrace, rows: int) -> RouteTrace:
    """Each window is a sequence, so that `prefill` takes one a forward. What is left over of a sequence is left out."""
    starts = [
        first
        for start, end in zip(trace.sequence_start[:-1].tolist(), trace.sequence_start[1:].tolist(), strict=True)
        for first in range(start, end - rows + 1, rows)
    ]
    taken = (np.array(starts, np.int64)[:, None] + np.arange(rows)).ravel()

    def some(array: Array | None) -> Array | None:
        return None if array is None else array[:, taken]

    return replace(
        trace,
        token_ids=trace.token_ids[taken],
        phase=trace.phase[taken],
        sequence_start=rows * np.arange(len(starts) + 1, dtype=np.int64),
        expert_ids=trace.expert_ids[:, taken],
        expert_weights=some(trace.expert_weights),
        router_logits=some(trace.router_logits),
        lookahead_logits=some(trace.lookahead_logits),
        labels=None,
    )


def window_counts(trace: RouteTrace) -> Array:
    """[W, L, E]: of each sequence, here a window, how many rows chose each expert."""
    windows, experts = trace.num_sequences, trace.num_experts
    window_of = np.repeat(np.arange(windows), np.diff(trace.sequence_start))
    places = trace.expert_ids.astype(np.int64) + experts * window_of[:, None]
    by_layer = [np.bincount(layer.ravel(), minlength=windows * experts).reshape(windows, experts) for layer in places]
    return np.stack(by_layer, axis=1)
