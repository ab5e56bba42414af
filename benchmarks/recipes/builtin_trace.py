"""Makes smoe/assets/traces/builtin.safetensors.gz: the built-in model's own routes on held-out text, one token a step.

    python benchmarks/recipes/builtin_trace.py OUT.safetensors.gz

Each of the four held-out texts gives TEXTS windows of LENGTH tokens, in turns. With look-ahead logits, so that gate
prefetch can be simulated.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from smoe.bench.quality.recording import Recording
from smoe.bench.quality.scoring import Scorer
from smoe.bench.quality.texts import DOMAINS, heldout_tokens, windows
from smoe.core.config import EngineConfig
from smoe.core.route_trace import RouteTrace, write_route_trace
from smoe.engine.tokenizer import load_tokenizer
from smoe.models.bank import ExpertBank, Lookahead
from smoe.models.decoder import Decoder
from smoe.models.loading import open_checkpoint
from smoe.offload.build import make_bank

TEXTS, LENGTH = 3, 64


class Listener:
    """A bank that keeps what looking ahead gives at every pass but the last layer's, from where nothing is ahead:
    `seen[layer]` is a list of [E] f16."""

    needs_logits = False

    def __init__(self, bank: ExpertBank, layers: tuple[int, ...]) -> None:
        self._bank = bank
        self._lookahead: Lookahead | None = None
        self.seen: dict[int, list[np.ndarray]] = {layer: [] for layer in layers[:-1]}

    def use_lookahead(self, lookahead: Lookahead) -> None:
        self._lookahead = lookahead

    def apply(self, layer: int, x_TD: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        assert self._lookahead is not None
        if layer in self.seen:
            self.seen[layer].append(self._lookahead(layer, x_TD)[0].to(torch.float16).numpy().copy())
        return self._bank.apply(layer, x_TD, *rest)

    def __getattr__(self, name: str) -> object:
        return getattr(self._bank, name)


def record() -> RouteTrace:
    checkpoint = open_checkpoint("builtin")
    spec = checkpoint.spec
    bank = Listener(make_bank(checkpoint, EngineConfig(), torch.float32), spec.moe_layers)
    decoder = Decoder(spec, checkpoint.params(dtype=torch.float32), bank, dtype=torch.float32)
    scorer = Scorer(decoder, max_tokens=LENGTH)
    router = spec.moe(spec.moe_layers[0]).router
    recording = Recording(
        fingerprint=checkpoint.fingerprint,
        num_experts=router.num_experts,
        top_k=router.top_k,
        layers=spec.moe_layers,
    )
    tokenizer = load_tokenizer(checkpoint.folder)
    assert tokenizer is not None
    by_domain = {name: windows(ids, TEXTS, LENGTH) for name, ids in heldout_tokens(tokenizer.encode).items()}
    for text in range(TEXTS):
        for domain in DOMAINS:
            scorer.nats(by_domain[domain][text], route_sink=recording.see)
            recording.end_text(by_domain[domain][text])
    seen = [np.stack(bank.seen[layer]) for layer in spec.moe_layers[:-1]]
    lookahead = np.stack([*seen, np.full_like(seen[0], -np.inf)])
    return replace(recording.trace(), router_logits=None, lookahead_logits=lookahead)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    write_route_trace(parser.parse_args().out, record())


if __name__ == "__main__":
    main()
