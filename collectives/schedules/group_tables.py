"""Tables over all devices as one tensor-parallel group sees them, whose rows stay within it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from smoe.core.placement import Array, RoutingTables


def within_group(tables: RoutingTables, ranks: Sequence[int]) -> RoutingTables:
    """The devices that the tables name become places in `ranks`; history is still that of all devices.

    A token whose device is elsewhere goes to its second one, at confidence 0: it makes room first. When that is
    elsewhere too, any place is as good, and tokens share them evenly by their ids. A chain that leads elsewhere has
    confidence -1, so that tokens are always surer.
    """
    size = len(ranks)
    device2place = np.full(tables.chain_device.shape[1] - 1, -1, dtype=np.int16)
    device2place[list(ranks)] = np.arange(size, dtype=np.int16)
    first, second = device2place[tables.token_device], device2place[tables.token_second]
    even = _even(first)
    best = np.where(first >= 0, first, np.where(second >= 0, second, even % size))
    other = np.where((first >= 0) & (second >= 0), second, (best + 1) % size)
    chain = device2place[tables.chain_device]
    return replace(
        tables,
        token_device=best.astype(np.int16),
        token_second=other.astype(np.int16),
        token_confidence=np.where(first >= 0, tables.token_confidence, np.float16(0)),
        chain_device=np.where(chain >= 0, chain, _even(chain) % size).astype(np.int16),
        chain_confidence=np.where(chain >= 0, tables.chain_confidence, np.float16(-1)),
    )


def _even(table: Array) -> Array:
    """The place of each entry in its last axis."""
    return np.broadcast_to(np.arange(table.shape[-1]), table.shape)
