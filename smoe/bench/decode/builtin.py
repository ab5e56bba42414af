"""Built-in model, resident: decode speed side by side with transformers."""

from dataclasses import dataclass, field
from statistics import median

import torch

from smoe.bench.decode.own import run_batch
from smoe.bench.decode.peer import IMPLEMENTATIONS, TransformersPeer
from smoe.bench.result import Figure, Result
from smoe.core.client import EngineClient

BATCHES = (1, 8, 32)
PROMPT_LEN = 32
GOALS = {1: 5.0, 32: 3.0}


@dataclass(slots=True)
class Samples:
    """Tokens/s of every repeat, by contender."""

    rates: dict[str, list[float]] = field(default_factory=dict)

    def add(self, contender: str, rate: float) -> None:
        self.rates.setdefault(contender, []).append(rate)

    def best_peer(self) -> tuple[str, float]:
        peers = {name: median(rates) for name, rates in self.rates.items() if name != "smoe"}
        best = max(peers, key=lambda name: peers[name])
        return best, peers[best]


def prompts(batch: int, length: int, vocab: int, seed: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, vocab, (batch, length), generator=generator)
    return [tuple(row) for row in ids.tolist()]


def compare(
    client: EngineClient, peer: TransformersPeer, *, dtype: str, steps: int, repeats: int, result: Result
) -> None:
    """Alternates smoe and every experts implementation of the peer, `repeats` times at each batch size."""
    for batch in BATCHES:
        ids = prompts(batch, PROMPT_LEN, client.info().vocab_size, seed=batch)
        tensor = torch.tensor(ids)
        samples = Samples()
        for repeat in range(repeats + 1):
            rates = {"smoe": batch / median(run_batch(client, ids, steps).step_s)}
            for implementation in IMPLEMENTATIONS:
                peer.use(implementation)
                rates[implementation] = batch / median(peer.decode(tensor, steps))
            if repeat:  # the first round warms every contender up
                for name, rate in rates.items():
                    samples.add(name, rate)
        _report(samples, batch, dtype, result)


def _report(samples: Samples, batch: int, dtype: str, result: Result) -> None:
    result.samples[f"builtin_{dtype}_batch{batch}_tokens_per_s"] = samples.rates
    own = median(samples.rates["smoe"])
    name, peer = samples.best_peer()
    spread = f"{min(samples.rates['smoe']):.0f}..{max(samples.rates['smoe']):.0f}"
    goal = GOALS.get(batch)
    name_own = f"built-in {dtype} batch {batch}: decode"
    result.add(Figure(figure=name_own, value=own, unit="tokens/s", bound=f"spread {spread}"))
    result.add(
        Figure(
            figure=f"built-in {dtype} batch {batch}: ratio to transformers",
            value=own / peer,
            unit="x",
            goal=None if goal is None else f">= {goal:g}x the best of its experts implementations",
            met=None if goal is None else own / peer >= goal,
            bound=f"best peer {name} {peer:.0f} tokens/s, same run, alternated",
        )
    )
