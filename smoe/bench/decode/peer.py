"""transformers as the peer: greedy decoding with its own cache, timed step by step."""

import time
from pathlib import Path
from typing import Any

import torch

IMPLEMENTATIONS = ("eager", "grouped_mm", "batched_mm")


class TransformersPeer:
    """One loaded model; the experts implementation is switched in place, as its users would set it."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        self._model = model.eval()

    def use(self, implementation: str) -> None:
        self._model.set_experts_implementation(implementation)

    @torch.inference_mode()
    def decode(self, prompts_BT: torch.Tensor, steps: int) -> list[float]:
        """Seconds of each of `steps` decode forwards (argmax included) after a prefill of `prompts_BT` (i64)."""
        out = self._model(prompts_BT, use_cache=True, logits_to_keep=1)
        seconds = []
        for _ in range(steps):
            start = time.perf_counter()
            token_B1 = out.logits[:, -1:].argmax(-1)
            out = self._model(token_B1, past_key_values=out.past_key_values, use_cache=True)
            seconds.append(time.perf_counter() - start)
        return seconds

    @torch.inference_mode()
    def prefill(self, prompts_BT: torch.Tensor) -> float:
        start = time.perf_counter()
        self._model(prompts_BT, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - start
