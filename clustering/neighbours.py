"""Token ids that no trace has seen take the row of the seen one whose embedding is nearest by cosine."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BLOCK = 2048
"""Rows on either side of a block of the product: 16 MB of it at a time."""


def nearest_seen(embedding_VD: Array, seen: Array, *, block: int = BLOCK) -> Array:
    """[V] i64: for each token id the seen id of the highest cosine, itself if seen; ties to the lowest id.

    `seen` [S] ascends. Memory beyond the arguments: two blocks of rows in f32 and their product.
    """
    vocab = len(embedding_VD)
    nearest = np.arange(vocab)
    unseen = np.setdiff1d(nearest, seen)
    for first in range(0, len(unseen), block):
        rows = unseen[first : first + block]
        query = _unit(embedding_VD[rows])
        best = np.full(len(rows), -np.inf, dtype=np.float32)
        for start in range(0, len(seen), block):
            candidates = seen[start : start + block]
            cosine = query @ _unit(embedding_VD[candidates]).T
            top = cosine.argmax(axis=1)
            value = cosine[np.arange(len(rows)), top]
            better = value > best
            best[better] = value[better]
            nearest[rows[better]] = candidates[top[better]]
    return nearest


def _unit(rows: Array) -> Array:
    rows = rows.astype(np.float32)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(length > 0, length, 1), dtype=np.float32)
