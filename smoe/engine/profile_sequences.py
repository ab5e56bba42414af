"""Documents as token sequences for the engine."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from smoe.engine.profile_data import Document


@dataclass(frozen=True, slots=True)
class Piece:
    """`name` is unique in a run and the same in each; `cut_tokens` of its document did not fit."""

    name: str
    label: str
    token_ids: tuple[int, ...]
    cut_tokens: int = 0


def choose(documents: Sequence[Document], fraction: float, seed: int) -> list[int]:
    """Indices of about `fraction` of them, one at least, drawn by `seed`; ascending."""
    count = max(1, round(fraction * len(documents)))
    return sorted(np.random.default_rng(seed).permutation(len(documents))[:count].tolist())


def one_by_one(
    documents: Sequence[Document], chosen: Sequence[int], encode: Callable[[str], list[int]], longest: int
) -> Iterator[Piece]:
    """A document a piece, cut to its first `longest` tokens; one without any token yields nothing."""
    for index in chosen:
        ids = encode(documents[index].text)
        if ids:
            yield Piece(str(index), documents[index].label, tuple(ids[:longest]), max(0, len(ids) - longest))


def packed(
    documents: Sequence[Document], chosen: Sequence[int], encode: Callable[[str], list[int]], longest: int
) -> Iterator[Piece]:
    """Documents of a label as one text, a blank line between, in pieces of `longest` tokens; the last may be short."""
    stream: list[int] = []
    for count, index in enumerate(chosen, start=1):
        label = documents[index].label
        follows = count > 1 and documents[chosen[count - 2]].label == label
        stream += encode(("\n\n" if follows else "") + documents[index].text)
        number = 0
        while len(stream) >= longest:
            yield Piece(f"{index}.{number}", label, tuple(stream[:longest]))
            del stream[:longest]
            number += 1
        if stream and (count == len(chosen) or documents[chosen[count]].label != label):
            yield Piece(f"{index}.{number}", label, tuple(stream))
            stream.clear()
