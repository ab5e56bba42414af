"""The built-in model's routes on held-out texts of its four domains."""

from dataclasses import replace

import numpy as np
import torch

from smoe.bench.quality.texts import heldout_tokens, windows
from smoe.core.config import EngineConfig
from smoe.core.route_trace import PREFILL, Array, RouteTrace
from smoe.engine.tokenizer import load_tokenizer
from smoe.models.batch import Batch
from smoe.models.decoder import Decoder
from smoe.models.kv import KVCache
from smoe.models.loading import open_checkpoint
from smoe.offload.build import make_bank

LENGTH = 256


def record(texts: int) -> tuple[RouteTrace, Array]:
    """`texts` windows of LENGTH tokens of each domain, spread evenly; labels are the domains. And the embedding [V, D]
    f32."""
    checkpoint = open_checkpoint("builtin")
    spec = checkpoint.spec
    params = checkpoint.params(dtype=torch.float32)
    embedding = params["embed"].float().numpy()
    decoder = Decoder(spec, params, make_bank(checkpoint, EngineConfig(), torch.float32), dtype=torch.float32)
    tokenizer = load_tokenizer(checkpoint.folder)
    assert tokenizer is not None
    tokens = heldout_tokens(tokenizer.encode)
    cut = [(domain, window) for domain, ids in tokens.items() for window in windows(ids, texts, LENGTH)]
    seen: dict[int, list[Array]] = {layer: [] for layer in spec.moe_layers}
    rows: dict[int, list[Array]] = {layer: [] for layer in spec.moe_layers}

    def see(layer: int, ids_TK: torch.Tensor, weights_TK: torch.Tensor, logits_TE: torch.Tensor) -> None:
        order = np.argsort(-weights_TK.numpy(), axis=-1, kind="stable")
        rows[layer].append(np.take_along_axis(ids_TK.numpy(), order, -1).astype(np.int16))

    cache = KVCache(spec, num_rows=LENGTH, num_states=1, dtype=decoder.dtype)
    with torch.inference_mode():
        for _, window in cut:
            decoder.forward(Batch.build([(window, 0, 0, 0)], route_sink=see), cache)
            for layer, found in rows.items():
                seen[layer].append(np.concatenate(found))
                found.clear()
    router = spec.moe(spec.moe_layers[0]).router
    trace = RouteTrace(
        fingerprint=checkpoint.fingerprint,
        num_experts=router.num_experts,
        top_k=router.top_k,
        layers=spec.moe_layers,
        token_ids=np.array([token for _, window in cut for token in window], dtype=np.int32),
        sequence_start=np.arange(len(cut) + 1, dtype=np.int64) * LENGTH,
        phase=np.full(len(cut) * LENGTH, PREFILL, dtype=np.uint8),
        expert_ids=np.stack([np.concatenate(seen[layer]) for layer in spec.moe_layers]),
    )
    return replace(trace, labels=tuple(domain for domain, _ in cut)), embedding
