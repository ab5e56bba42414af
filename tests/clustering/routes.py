"""Small route traces for tests of tables and evaluation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from smoe.core.route_trace import DECODE, RouteTrace

Array = npt.NDArray[Any]


def trace_of(
    expert_ids: Array, token_ids: Sequence[int] | Array, *, experts: int, starts: Sequence[int] | None = None
) -> RouteTrace:
    """`expert_ids` [L, T, k]."""
    layers, tokens, top_k = np.shape(expert_ids)
    made = RouteTrace(
        fingerprint="f",
        num_experts=experts,
        top_k=top_k,
        layers=tuple(range(layers)),
        token_ids=np.asarray(token_ids, dtype=np.int32),
        sequence_start=np.asarray(starts or [0, tokens], dtype=np.int64),
        phase=np.full(tokens, DECODE, dtype=np.uint8),
        expert_ids=np.asarray(expert_ids, dtype=np.int16),
    )
    made.validate()
    return made


def drawn(
    tokens: int = 400,
    *,
    layers: int = 3,
    experts: int = 8,
    top_k: int = 2,
    vocab: int = 20,
    seed: int = 0,
    length: int = 20,
) -> RouteTrace:
    """Every token id has experts that it likes; a passing mood, which lasts over layers, bends it."""
    chance = np.random.default_rng(seed)
    taste = np.random.default_rng(7).gumbel(size=(layers, vocab, experts)) * 2.0
    token_ids = chance.integers(0, vocab, tokens)
    mood = np.repeat(chance.integers(0, experts, tokens)[None], layers, axis=0)
    score = taste[:, token_ids] + 1.5 * np.eye(experts)[mood] + chance.gumbel(size=(layers, tokens, experts))
    ids = np.argsort(-score, axis=-1, kind="stable")[..., :top_k]
    return trace_of(ids, token_ids, experts=experts, starts=[*range(0, tokens, length), tokens])


def contiguous(layers: int, experts: int, devices: int) -> Array:
    """[L, E, G] bool."""
    device = np.repeat(np.arange(devices), experts // devices)
    return np.broadcast_to(device[:, None] == np.arange(devices), (layers, experts, devices)).copy()
