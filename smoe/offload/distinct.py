"""Distinct expert ids of a routing, but for -1: a choice that another device computes."""

import numpy as np

from smoe.offload.policies.protocols import Array

SMALL_IDS = 512
"""Up to here a set of Python integers is the fastest way; one decoding row has ten or so."""


def distinct(ids: Array) -> list[int]:
    """Ascending."""
    if ids.size <= SMALL_IDS:
        some = sorted(set(ids.ravel().tolist()))
        return some[1:] if some and some[0] < 0 else some
    found: list[int] = np.flatnonzero(np.bincount(ids.ravel() + 1)[1:]).tolist()
    return found
