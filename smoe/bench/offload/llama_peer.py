"""llama.cpp with its memory-mapped file as a contender: `python -m smoe.bench.offload.llama_peer MODEL.gguf THREADS`.

{"op": "open", "limit_folder": group or None} joins the group, then loads. {"op": "decode", "prompt": token ids,
"tokens": n} decodes greedily.
"""

import itertools
import sys
import time
from typing import Any

from smoe.bench.offload.limit import join
from smoe.bench.offload.worker import Message, serve


class Llama:
    def __init__(self, path: str, threads: str) -> None:
        self._path, self._threads = path, int(threads)
        self._model: Any = None

    def handle(self, message: Message) -> Message:
        if message["op"] == "open":
            return self._open(message.get("limit_folder"))
        return self._decode(message["prompt"], message["tokens"])

    def _open(self, limit_folder: str | None) -> Message:
        join(limit_folder)
        import llama_cpp

        self._model = llama_cpp.Llama(
            self._path, n_ctx=512, n_threads=self._threads, n_threads_batch=self._threads, use_mmap=True, verbose=False
        )
        return {}

    def _decode(self, prompt: list[int], tokens: int) -> Message:
        from smoe.bench.offload.sample import Sample

        self._model.reset()
        began = time.perf_counter()
        self._model.eval(prompt)
        ticks, token_ids = [], []
        for _ in range(tokens):
            token_ids.append(int(self._model.sample(temp=0.0)))
            ticks.append(time.perf_counter())
            if len(token_ids) < tokens:
                self._model.eval(token_ids[-1:])
        gaps = [late - early for early, late in itertools.pairwise(ticks)]
        return Sample(ttft_s=ticks[0] - began, step_s=gaps, token_ids=token_ids).to_json()


if __name__ == "__main__":
    serve(Llama(*sys.argv[1:]).handle)
