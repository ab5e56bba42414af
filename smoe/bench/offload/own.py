"""smoe as a contender: `python -m smoe.bench.offload.own '{"model": ...}'`, the argument being fields of EngineConfig.

Messages: {"op": "open"} loads the engine anew, with an empty cache; {"op": "decode", "prompt": token ids, "tokens": n}.
"""

import itertools
import json
import sys
import time
from typing import Any

from smoe.bench.offload.limit import join
from smoe.bench.offload.worker import Message, serve
from smoe.core.client import EngineClient
from smoe.core.request import Request
from smoe.core.sampling import SamplingParams


class Own:
    def __init__(self, config: dict[str, Any]) -> None:
        self._config, self._number = config, 0
        self._client: EngineClient | None = None

    def handle(self, message: Message) -> Message:
        return self._open() if message["op"] == "open" else self._decode(message["prompt"], message["tokens"])

    def close(self) -> None:
        if self._client is not None:
            self._client.shutdown()
            self._client = None

    def _open(self) -> Message:
        from smoe.core.config import EngineConfig
        from smoe.engine.build import build_local_client

        self.close()
        self._client = build_local_client(EngineConfig(**self._config))
        stats = self._client.stats()
        return {"budget_bytes": stats.experts.budget_bytes, "peak_rss_bytes": stats.peak_rss_bytes}

    def _decode(self, prompt: list[int], tokens: int) -> Message:
        from smoe.bench.offload.sample import Sample

        client = self._client
        assert client is not None
        self._number += 1
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        request = Request(request_id=str(self._number), prompt_token_ids=tuple(prompt), params=params)
        began = time.perf_counter()
        client.submit([request])
        ticks, token_ids, finished = [], list[int](), False
        after_prefill = client.stats().experts
        while not finished:
            for delta in client.poll():
                if delta.finish_reason not in (None, "length"):
                    raise RuntimeError(f"ended with {delta.finish_reason}: {delta.error}")
                finished = finished or delta.finish_reason is not None
                token_ids += delta.token_ids
                ticks.append(time.perf_counter())
                if len(ticks) == 1:
                    after_prefill = client.stats().experts
        stats = client.stats()
        return Sample(
            ttft_s=ticks[0] - began,
            step_s=[late - early for early, late in itertools.pairwise(ticks)],
            experts=stats.experts.since(after_prefill),
            token_ids=token_ids,
            peak_rss_bytes=stats.peak_rss_bytes,
        ).to_json()


def main() -> None:
    """Command line. `limit_folder` in the argument is a control group to join before anything is loaded."""
    config = json.loads(sys.argv[1])
    join(config.pop("limit_folder", None))
    own = Own(config)
    try:
        serve(own.handle)
    finally:
        own.close()


if __name__ == "__main__":
    main()
