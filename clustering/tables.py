"""Tables T and A of a placement, counted on a route trace.

Axes: L layers of the trace, T tokens, E experts, G devices, V token ids, R token ids seen.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smoe.clustering.chain import Rival, against, history_table
from smoe.clustering.groups import TokenGroups, group_tokens
from smoe.clustering.local import local_counts, majority
from smoe.clustering.neighbours import nearest_seen
from smoe.clustering.shrink import expected_shares, fit_strength, newcomers_share
from smoe.core.errors import ConfigError
from smoe.core.placement import RoutingTables
from smoe.core.route_trace import RouteTrace

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTable:
    """One layer's rows for the ids seen [R]: best and second device, expected share on the best. `prior` [G] is what
    is expected of ids never seen. `rival` is the same as the rows for each token of the trace, as counted without its
    sequence."""

    device: Array
    second: Array
    confidence: Array
    prior: Array
    strength: float
    rival: Rival


def build_tables(
    trace: RouteTrace, on_device: Array, *, vocab_size: int | None = None, embedding: Array | None = None
) -> RoutingTables:
    """`on_device` [L, E, G] bool as a Placement's. `vocab_size`: None takes the trace's highest id and one.

    Ids that the trace lacks copy the row of the nearest one by `embedding` [V, D]; without it they go where most
    activations of rare ids go. Raises ConfigError for an embedding or vocabulary that does not fit.
    """
    layers, num_devices = len(trace.layers), on_device.shape[2]
    groups = group_tokens(trace)
    vocab = _vocab(trace, vocab_size, embedding)
    nearest = None if embedding is None or groups is None else nearest_seen(embedding, groups.token_ids)
    device, second = np.zeros((layers, vocab), np.int16), np.zeros((layers, vocab), np.int16)
    confidence = np.zeros((layers, vocab), np.float16)
    states = num_devices + 1
    chain, chain_confidence = (
        np.zeros((layers, states, states), np.int16),
        np.zeros((layers, states, states), np.float16),
    )
    before2 = before1 = np.full(trace.num_tokens, num_devices, dtype=np.int16)
    for layer in range(layers):
        local = local_counts(trace.expert_ids[layer], on_device[layer])
        history = history_table(local, before2, before1, trace.top_k)
        chain[layer], chain_confidence[layer] = history.device, history.share
        unknown = local.sum(axis=0, dtype=np.float64) / (trace.num_tokens * trace.top_k)
        table = None if groups is None else token_table(groups, local, unknown, trace.top_k)
        first, next_best, share = best_two((unknown if table is None else table.prior)[None])
        device[layer], second[layer], confidence[layer] = first[0], next_best[0], share[0]
        if groups is not None and table is not None:
            device[layer, groups.token_ids] = table.device
            second[layer, groups.token_ids] = table.second
            confidence[layer, groups.token_ids] = table.confidence
            chain[layer], chain_confidence[layer] = against(table.rival, history, local, before2, before1)
        if nearest is not None:
            for rows in (device, second, confidence):
                rows[layer] = rows[layer, nearest]
        before2, before1 = before1, majority(local)
    return RoutingTables(
        token_device=device,
        token_confidence=confidence,
        token_second=second,
        chain_device=chain,
        chain_confidence=chain_confidence,
    )


def token_table(groups: TokenGroups, local_TG: Array, mean_G: Array, top_k: int) -> TokenTable:
    """`mean_G`: the share of all tokens' activations on each device."""
    pairs = groups.pair_sums(local_TG)
    prior_G = newcomers_share(groups, pairs, mean_G, top_k)
    counts = groups.token_sums(pairs)
    strength = fit_strength(groups, pairs, counts, prior_G, top_k)
    shares = expected_shares(counts, groups.occurrences * float(top_k), prior_G, strength)
    device, second, confidence = best_two(shares)
    rival = _left_out(groups, pairs, counts, prior_G, strength, top_k)
    return TokenTable(
        device=device, second=second, confidence=confidence, prior=prior_G, strength=strength, rival=rival
    )


def _left_out(
    groups: TokenGroups, pairs_PG: Array, counts_RG: Array, prior_G: Array, strength: float, top_k: int
) -> Rival:
    token = groups.token_of_pair
    others = groups.occurrences[token] - groups.pair_occurrences
    device, _, confidence = best_two(
        expected_shares(counts_RG[token] - pairs_PG, others * float(top_k), prior_G, strength)
    )
    of_row, surer = np.zeros(groups.num_tokens, np.int16), np.full(groups.num_tokens, -1.0)
    of_row[groups.rows] = np.repeat(device, groups.pair_occurrences)
    surer[groups.rows] = np.repeat(confidence, groups.pair_occurrences)
    return Rival(device=of_row, confidence=surer)


def best_two(shares_RG: Array) -> tuple[Array, Array, Array]:
    """Best device, second best (the same where there is only one), and the share on the best; ties to the lowest id."""
    rows = np.arange(len(shares_RG))
    device = shares_RG.argmax(axis=1)
    rest = shares_RG.copy()
    rest[rows, device] = -np.inf
    return device.astype(np.int16), rest.argmax(axis=1).astype(np.int16), shares_RG[rows, device]


def seen_ids(trace: RouteTrace) -> Array:
    """[R] i32: the token ids that the trace holds, ascending."""
    return np.unique(trace.token_ids[trace.token_ids >= 0])


def vocab_of(*traces: RouteTrace) -> int:
    """The least vocabulary that holds every token id, 1 where none is known."""
    return max(1, *(int(trace.token_ids.max(initial=-1)) + 1 for trace in traces))


def _vocab(trace: RouteTrace, vocab_size: int | None, embedding: Array | None) -> int:
    least = vocab_of(trace)
    vocab = vocab_size if vocab_size is not None else len(embedding) if embedding is not None else least
    if vocab < least:
        raise ConfigError("vocab_size", vocab, f"above {least - 1}, the trace's highest token id")
    if embedding is not None and len(embedding) != vocab:
        raise ConfigError("embedding", f"{len(embedding)} rows", f"the vocabulary of {vocab}")
    return vocab
