"""Distinct expert ids of a routing."""

import numpy as np

from smoe.offload.policies.protocols import Array

SMALL_IDS = 512
"""Up to here a set of Python integers is the fastest way; one decoding row has ten or so."""


def distinct(ids: Array) -> list[int]:
    """Ascending."""
    if ids.size <= SMALL_IDS:
        return sorted(set(ids.ravel().tolist()))
    found: list[int] = np.flatnonzero(np.bincount(ids.ravel())).tolist()
    return found
