"""smoe's side of the decode benchmark: whole requests through the engine, timed by when deltas arrive."""

import itertools
import time
from collections import defaultdict
from dataclasses import dataclass

from smoe.core.client import EngineClient
from smoe.core.request import Request
from smoe.core.sampling import SamplingParams

_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class Timing:
    """`ttft_s`: submit to the first token of the last request to start. `step_s`: gaps between later decode steps."""

    ttft_s: float
    step_s: list[float]


def run_batch(client: EngineClient, prompts: list[tuple[int, ...]], tokens: int) -> Timing:
    """Greedy decoding of all prompts at once to exactly `tokens` tokens each.

    A step's time is the gap between polls once every request is decoding, so sampling, scheduling and text are in it.
    """
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    names = [f"bench-{next(_ids)}" for _ in prompts]
    requests = [Request(request_id=n, prompt_token_ids=p, params=params) for n, p in zip(names, prompts, strict=True)]
    counts: dict[str, int] = defaultdict(int)
    ticks: list[float] = []
    started = 0.0
    unfinished = set(names)
    begin = time.perf_counter()
    client.submit(requests)
    while unfinished:
        deltas = client.poll()
        now = time.perf_counter()
        for delta in deltas:
            counts[delta.request_id] += len(delta.token_ids)
            if delta.finish_reason is not None:
                if delta.finish_reason != "length":
                    raise RuntimeError(f"{delta.request_id} ended with {delta.finish_reason}: {delta.error}")
                unfinished.discard(delta.request_id)
        if not started and len(counts) == len(names):
            started = now
        if started:
            ticks.append(now)
    gaps = [b - a for a, b in itertools.pairwise(ticks)]
    return Timing(started - begin, gaps)
