"""Made-up routes: popular experts, and tokens that keep some of what the token before them used."""

import itertools
from typing import Any

import numpy as np

from smoe.core.errors import ConfigError
from smoe.core.route_trace import DECODE, PREFILL, RouteTrace


def synthetic_routes(
    *,
    num_layers: int,
    num_experts: int,
    top_k: int,
    tokens: int,
    sequences: int = 1,
    prompt: int = 0,
    zipf: float = 1.0,
    locality: float = 0.4,
    vocab: int = 1000,
    seed: int = 0,
) -> RouteTrace:
    """Equal arguments give equal traces. `tokens` in all, in `sequences` of nearly equal length; the first `prompt` of
    each are prefill.

    Each layer ranks its experts by chance, and the one of rank r is drawn in proportion to r ** -`zipf` (0: all alike).
    Each of a token's k choices is kept from its predecessor with chance `locality`. Weights fall from slot to slot and
    sum to one. Raises ConfigError.
    """
    if not 1 <= top_k <= num_experts:
        raise ConfigError("top_k", top_k, f"1 to num_experts = {num_experts}")
    if not 0.0 <= locality <= 1.0:
        raise ConfigError("locality", locality, "0 to 1")
    if not 1 <= sequences <= tokens:
        raise ConfigError("sequences", sequences, f"1 to the {tokens} tokens")
    rng = np.random.default_rng(seed)
    starts = np.linspace(0, tokens, sequences + 1).astype(np.int64)
    chance = np.arange(1, num_experts + 1) ** -float(zipf)
    ids = np.empty((num_layers, tokens, top_k), dtype=np.int16)
    for layer in range(num_layers):
        # Gumbel noise on log chances: the k largest are k draws without replacement.
        liking = np.log(chance[rng.permutation(num_experts)])
        fresh = np.argsort(-(liking + rng.gumbel(size=(tokens, num_experts))), axis=1)
        kept = rng.random((tokens, top_k)) < locality
        kept[starts[:-1]] = False
        ids[layer] = _chain(fresh, kept)
    weights = np.sort(rng.dirichlet(np.full(top_k, 2.0), (num_layers, tokens)), axis=-1)[..., ::-1]
    phase = np.full(tokens, DECODE, dtype=np.uint8)
    for start, end in itertools.pairwise(starts):
        phase[start : min(start + prompt, end)] = PREFILL
    trace = RouteTrace(
        fingerprint=f"synthetic:zipf={zipf:g},locality={locality:g},seed={seed}",
        num_experts=num_experts,
        top_k=top_k,
        layers=tuple(range(num_layers)),
        token_ids=rng.integers(0, vocab, tokens).astype(np.int32),
        sequence_start=starts,
        phase=phase,
        expert_ids=ids,
        expert_weights=weights.astype(np.float16),
    )
    trace.validate("synthetic routes")
    return trace


def _chain(fresh: Any, kept: Any) -> Any:
    """[T, k]: where `kept`, the predecessor's choice of that slot, elsewhere the best of `fresh` that is not there."""
    tokens, top_k = kept.shape
    chosen = np.empty((tokens, top_k), dtype=np.int16)
    for token in range(tokens):
        stay = [int(expert) for expert in chosen[token - 1][kept[token]]] if token else []
        have = set(stay)
        new = [expert for expert in fresh[token, : 2 * top_k].tolist() if expert not in have]
        chosen[token] = [*stay, *new[: top_k - len(stay)]]
    return chosen
