"""What a policy would substitute, from recorded routes alone: hidden states, so later logits too, stay as recorded."""

import numpy as np

from smoe.bench.quality.ideal import IdealCache, Tally
from smoe.core.route_trace import RouteTrace
from smoe.offload.policies.protocols import Routing


def estimate(trace: RouteTrace, cache: IdealCache) -> list[Tally]:
    """Replays the trace through `cache`, a token a forward; one tally a sequence."""
    if trace.expert_weights is None or trace.router_logits is None:
        raise ValueError("an estimate needs a trace with expert weights and router logits")
    weights = trace.expert_weights.astype(np.float32)
    logits = trace.router_logits.astype(np.float32)
    tallies = []
    for start, end in zip(trace.sequence_start[:-1], trace.sequence_start[1:], strict=True):
        before = cache.tally()
        for token in range(start, end):
            cache.begin_forward()
            row = slice(token, token + 1)
            for index, layer in enumerate(trace.layers):
                routing = Routing(
                    layer=layer,
                    ids=trace.expert_ids[index, row].astype(np.int32),
                    weights=weights[index, row],
                    logits=logits[index, row],
                    token_ids=trace.token_ids[row],
                )
                cache.route(routing)
        tallies.append(cache.tally().since(before))
    return tallies
