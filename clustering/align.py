"""Rows to devices under a bound on how many a device may take, and the permutation that carries them.

Equal chunks are what a reduce-scatter needs; ragged ones, bounded by a capacity factor, follow the tables further. The
reference that the code on devices is tested against: every step is a stable sort, so that its answer is one.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

NO_ROW = -1


def capacity_of(num_rows: int, num_devices: int, factor: float = 1.0) -> int:
    """Rows that a device may take; factor 1 gives the equal chunks of `num_rows` padded to a multiple of devices."""
    return math.ceil(factor * -(-num_rows // num_devices) - 1e-9)


def align(device: Array, second: Array, confidence: Array, num_devices: int, capacity: int) -> Array:
    """[T] i16: the device that takes each row, none more than `capacity`. `num_devices * capacity` covers T.

    A device keeps its surest rows (equal ones in row order). Those that spill go to their second choice, the surest
    first, while there is room; what is left fills the devices in order of id, the surest first.
    """
    assert num_devices * capacity >= len(device), (num_devices, capacity, len(device))
    sure_first = np.argsort(-confidence.astype(np.float32), kind="stable")
    placed = np.full(len(device), NO_ROW, dtype=np.int16)
    room = np.full(num_devices, capacity)
    for wish in (device, second):
        waiting = sure_first[placed[sure_first] == NO_ROW]
        if len(waiting) == 0:
            return placed
        taken = waiting[_rank_in_group(wish[waiting], num_devices) < room[wish[waiting]]]
        placed[taken] = wish[taken]
        room -= np.bincount(wish[taken], minlength=num_devices)
    waiting = sure_first[placed[sure_first] == NO_ROW]
    placed[waiting] = np.repeat(np.arange(num_devices), room)[: len(waiting)]
    return placed


def permutation(placed: Array, num_devices: int) -> tuple[Array, Array]:
    """([T] rows in order of device, each device's in row order; [G] rows a device)."""
    return np.argsort(placed, kind="stable"), np.bincount(placed, minlength=num_devices)


def padded_chunks(placed: Array, num_devices: int) -> Array:
    """[G, ceil(T / G)] rows of equal chunks, NO_ROW where padding fills a chunk. `placed` must be aligned to that."""
    order, sizes = permutation(placed, num_devices)
    chunks = np.full((num_devices, capacity_of(len(placed), num_devices)), NO_ROW)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    chunks[placed[order], np.arange(len(placed)) - first] = order
    return chunks


def _rank_in_group(group: Array, num_groups: int) -> Array:
    """[T]: how many before it are of the same group."""
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group, minlength=num_groups)
    rank = np.empty(len(group), dtype=np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank
