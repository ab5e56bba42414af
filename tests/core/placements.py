"""Small placements for tests."""

from dataclasses import replace
from typing import Any

import numpy as np

from smoe.core.placement import Placement, RoutingTables
from smoe.core.placement_build import from_expert_device

LAYERS, EXPERTS, SLOTS, VOCAB = (1, 2, 5), 7, (3, 2, 2), 11
DEVICES = len(SLOTS)


def tables(seed: int = 0, *, layers: int = len(LAYERS), devices: int = DEVICES, vocab: int = VOCAB) -> RoutingTables:
    rng = np.random.default_rng(seed)
    first = rng.integers(devices, size=(layers, vocab), dtype=np.int16)
    chain = (layers, devices + 1, devices + 1)
    return RoutingTables(
        token_device=first,
        token_confidence=rng.random((layers, vocab)).astype(np.float16),
        token_second=((first + rng.integers(1, devices, size=first.shape)) % devices).astype(np.int16),
        chain_device=rng.integers(devices, size=chain, dtype=np.int16),
        chain_confidence=rng.random(chain).astype(np.float16),
    )


def placement(seed: int = 0, **changes: Any) -> Placement:
    """Uneven groups on three devices, three layers, random; with tables unless `tables` says otherwise."""
    rng = np.random.default_rng(seed)
    groups = np.stack([rng.permutation(np.repeat(np.arange(DEVICES), SLOTS)) for _ in LAYERS])
    made = from_expert_device(groups, SLOTS, fingerprint="abc", layers=LAYERS, tables=tables(seed))
    return replace(made, **changes)


def same(a: Any, b: Any) -> bool:
    """Whether two placements, or two sets of tables, are equal down to the dtypes."""
    for field in type(a).__dataclass_fields__:
        ours, theirs = getattr(a, field), getattr(b, field)
        if isinstance(ours, RoutingTables) and isinstance(theirs, RoutingTables):
            if not same(ours, theirs):
                return False
        elif isinstance(ours, np.ndarray):
            if ours.dtype != theirs.dtype or not np.array_equal(ours, theirs):
                return False
        elif ours != theirs:
            return False
    return True
