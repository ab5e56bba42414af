"""Drafter: proposes the tokens that a verification window checks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from smoe.core.step import SpanPlan

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Of each span: the drafted tokens, and the distribution that each was drawn from.

    `mass[i][j]` [V] f32 sums to 1, or is None for a token that was no draw (greedy, looked up): it had probability 1.
    """

    tokens: tuple[tuple[int, ...], ...]
    mass: tuple[tuple[Array | None, ...], ...]


class Drafter(Protocol):
    """Sequences are told apart by their spans' `request_id`."""

    def propose(self, spans: Sequence[SpanPlan], known: Sequence[Sequence[int]], limits: Sequence[int]) -> Proposal:
        """Up to limits[i] >= 0 tokens to come after known[i], all tokens of the sequence of span i so far.

        A span is a decode step (its last token is the last of `known`; rows before it are in the KV cache) of up to
        limits[i] + 1 rows: a self-draft may write the rows from `past` on, since verification writes them again.
        """
        ...

    def accepted(self, spans: Sequence[SpanPlan], counts: Sequence[int]) -> None:
        """How many of the proposed tokens of each span the model kept. Not called when verification failed: then
        nothing of the last proposal holds."""
        ...

    def forget(self, request_id: str) -> None:
        """The sequence, if it is known, has ended or begins again."""
        ...

    def close(self) -> None: ...
