"""What `smoe trace info` says about a route trace."""

from collections import Counter
from typing import Any

import numpy as np

from smoe.core.route_trace import DECODE, RouteTrace


def summarize(trace: RouteTrace) -> dict[str, Any]:
    """Plain values, ready for JSON. Shares are of all token-expert pairs of a layer.

    `load_max_over_mean`: pairs of the busiest expert over the mean. `repeat_share`: of the pairs of a token that
    has a predecessor, those whose expert also computed the predecessor.
    """
    lengths = np.diff(trace.sequence_start)
    continues = np.ones(trace.num_tokens, dtype=bool)
    continues[trace.sequence_start[:-1]] = False
    rows = np.flatnonzero(continues)
    layers = []
    for index, layer in enumerate(trace.layers):
        ids = trace.expert_ids[index]
        counts = np.bincount(ids.ravel(), minlength=trace.num_experts)
        repeats = (ids[rows][:, :, None] == ids[rows - 1][:, None, :]).any(-1)
        layers.append(
            {
                "layer": layer,
                "experts_used": int((counts > 0).sum()),
                "load_max_over_mean": float(counts.max() / counts.mean()) if counts.any() else 0.0,
                "repeat_share": float(repeats.mean()) if repeats.size else 0.0,
            }
        )
    decode = int((trace.phase == DECODE).sum())
    return {
        "fingerprint": trace.fingerprint,
        "num_experts": trace.num_experts,
        "top_k": trace.top_k,
        "num_layers": len(trace.layers),
        "sequences": trace.num_sequences,
        "tokens": trace.num_tokens,
        "prefill_tokens": trace.num_tokens - decode,
        "decode_tokens": decode,
        "longest_sequence": int(lengths.max()) if len(lengths) else 0,
        "has_weights": trace.expert_weights is not None,
        "has_logits": trace.router_logits is not None,
        "labels": dict(Counter(trace.labels or ())),
        "layers": layers,
    }
