"""transformers with accelerate's disk offload as a contender: `python -m ...accelerate_peer FOLDER SCRATCH`.

{"op": "open", "limit_folder": group or None}: loads outside the limit, since loading takes more than the whole model's
size, and joins the group for what follows. {"op": "decode", "prompt": token ids, "tokens": n} decodes greedily.
"""

import itertools
import sys
import time
from pathlib import Path
from typing import Any

from smoe.bench.offload.limit import drop_page_cache, join
from smoe.bench.offload.worker import Message, serve


class Accelerate:
    def __init__(self, folder: str, scratch: str) -> None:
        self._folder, self._scratch = folder, Path(scratch)
        self._model: Any = None

    def handle(self, message: Message) -> Message:
        if message["op"] == "open":
            return self._open(message.get("limit_folder"))
        return self._decode(message["prompt"], message["tokens"])

    def _open(self, limit_folder: str | None) -> Message:
        import torch
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(
            self._folder,
            dtype=torch.bfloat16,
            device_map={"": "disk"},
            offload_folder=str(self._scratch),
            local_files_only=True,
        )
        self._model = model.eval()
        drop_page_cache(path for path in self._scratch.rglob("*") if path.is_file())
        join(limit_folder)
        return {}

    def _decode(self, prompt: list[int], tokens: int) -> Message:
        import torch

        from smoe.bench.offload.sample import Sample

        began = time.perf_counter()
        ticks, token_ids = [], []
        with torch.inference_mode():
            out = self._model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
            for _ in range(tokens):
                token_ids.append(int(out.logits[0, -1].argmax()))
                ticks.append(time.perf_counter())
                if len(token_ids) < tokens:
                    # The argument's new name, `cache`, is not there in every version that runs here.
                    last = torch.tensor([[token_ids[-1]]])
                    out = self._model(last, past_key_values=out.past_key_values, use_cache=True)
        gaps = [late - early for early, late in itertools.pairwise(ticks)]
        return Sample(ttft_s=ticks[0] - began, step_s=gaps, token_ids=token_ids).to_json()


if __name__ == "__main__":
    serve(Accelerate(*sys.argv[1:]).handle)
