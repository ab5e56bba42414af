"""Rows of a trace gathered by token id, and within a token by sequence, for every layer at once.

Axes: T tokens of the trace with a known id, P (token id, sequence) pairs, R distinct token ids, G devices.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from smoe.core.route_trace import RouteTrace

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenGroups:
    """`rows` [T] orders those of a trace's `num_tokens` tokens that have an id, by id, then sequence. `pair_start` [P]
    and `token_start` [R] (in pairs) cut it; `token_ids` [R] ascend; `occurrences` [R] and `pair_occurrences` [P] count
    tokens."""

    num_tokens: int
    rows: Array
    pair_start: Array
    token_start: Array
    token_ids: Array
    pair_occurrences: Array
    occurrences: Array

    def pair_sums(self, values_TG: Array) -> Array:
        """[P, G] f32: sums of the trace's rows."""
        return np.add.reduceat(values_TG[self.rows].astype(np.float32), self.pair_start, axis=0)

    def token_sums(self, pairs_PG: Array) -> Array:
        """[R, G] f32 from sums by pair."""
        return np.add.reduceat(pairs_PG, self.token_start, axis=0)

    @property
    def token_of_pair(self) -> Array:
        """[P]: index into `token_ids`."""
        counts = np.diff(np.append(self.token_start, len(self.pair_start)))
        return np.repeat(np.arange(len(self.token_ids)), counts)


def group_tokens(trace: RouteTrace) -> TokenGroups | None:
    """None where no token's id is known."""
    known = np.flatnonzero(trace.token_ids >= 0)
    if len(known) == 0:
        return None
    sequence = np.repeat(np.arange(trace.num_sequences), np.diff(trace.sequence_start))[known]
    order = np.lexsort((sequence, trace.token_ids[known]))
    tokens, sequences = trace.token_ids[known][order], sequence[order]
    new_token = np.append(True, tokens[1:] != tokens[:-1])
    new_pair = new_token | np.append(True, sequences[1:] != sequences[:-1])
    pair_start = np.flatnonzero(new_pair)
    token_start = np.flatnonzero(new_token[pair_start])
    pair_occurrences = np.diff(np.append(pair_start, len(tokens)))
    return TokenGroups(
        num_tokens=trace.num_tokens,
        rows=known[order],
        pair_start=pair_start,
        token_start=token_start,
        token_ids=tokens[pair_start[token_start]],
        pair_occurrences=pair_occurrences,
        occurrences=np.add.reduceat(pair_occurrences, token_start),
    )
