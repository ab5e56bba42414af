"""Which pairs a program computes: a tile, up to BLOCK_M places of one slot.

Letters: T rows, K choices, N = T * K pairs, S slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from smoe.kernels.routing.bins import sort_by_bin
from smoe.kernels.routing.launch import block_of, blocks, device_function

if TYPE_CHECKING:
    import triton.language as tl


FEW_PAIRS = 16  # a slot, on average: with more a larger tile reads weights less often


class Places(NamedTuple):
    """An order of the pairs by slot: of `sort_by_bin`, or of the pairs themselves, each a tile (`order` and `offsets`
    are then the slots)."""

    order_N: Tensor
    offsets: Tensor
    is_sorted: bool

    def groups(self, num_slots: int) -> list[tuple[int, Tensor, Tensor]]:
        """(slot, its places, their pairs), i64, of each slot that has pairs; waits for the device."""
        if not self.is_sorted:
            slots = self.order_N.tolist()
            used = sorted({slot for slot in slots if 0 <= slot < num_slots})
            places = [(self.order_N == slot).nonzero().flatten() for slot in used]
            return [(slot, place, place) for slot, place in zip(used, places, strict=True)]
        bounds: list[int] = self.offsets.tolist()
        found = [(slot, bounds[slot], bounds[slot + 1]) for slot in range(num_slots)]
        place_N = torch.arange(len(self.order_N), device=self.order_N.device)
        return [(slot, place_N[a:b], self.order_N[a:b].long()) for slot, a, b in found if a < b]


def place_pairs(slots_TK: Tensor, num_slots: int) -> Places:
    """One row's experts differ, so that nothing is gained by sorting it: its pairs are tiles as they are."""
    if len(slots_TK) == 1:
        slots_N = slots_TK.flatten()
        return Places(slots_N, slots_N, False)
    made = sort_by_bin(slots_TK, num_slots)
    return Places(made.order, made.offsets, True)


class Tiling(NamedTuple):
    """One launch's shape. The bits of a row depend on `block_k` and on the matrix instruction alone: the first is one
    for a dtype, and with at most 32 rows a tile the second is m16n8k16 on every GPU from sm_80 on (64 rows would be
    another one on sm_90). So what a row gives does not depend on the rows beside it."""

    block_m: int
    block_n: int
    block_k: int
    num_stages: int
    num_warps: int

    def options(self) -> dict[str, int]:
        """For a launch."""
        blocks_mnk = {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "BLOCK_K": self.block_k}
        return blocks_mnk | {"num_stages": self.num_stages, "num_warps": self.num_warps}


def tiling(num_pairs: int, num_slots: int, dtype: torch.dtype) -> Tiling:
    """For `num_pairs` pairs over `num_slots` slots, multiplied in `dtype`."""
    if dtype is torch.float32:  # no tensor cores: registers are what is scarce
        return Tiling(16, 32, 32, 3, 4)
    if num_pairs <= FEW_PAIRS * num_slots:
        return Tiling(16, 64, 64, 4, 4)
    return Tiling(32, 128, 64, 3, 4)


def max_tiles(places: Places, num_slots: int, block_m: int) -> int:
    """Of any distribution of the pairs over the slots: each slot in use may have one that is not full."""
    num_pairs = len(places.order_N)
    if not places.is_sorted or num_pairs == 0:
        return num_pairs
    return min(num_pairs, blocks(num_pairs, block_m) + min(num_slots, num_pairs) - 1)


def slots_block(num_slots: int) -> int:
    """Lanes that hold one slot each."""
    return block_of(num_slots, 1 << 16)


@device_function
def find_tile(
    order: tl.tensor,
    offsets: tl.tensor,
    tile: tl.tensor,
    num_slots: tl.tensor,
    SORTED: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
) -> tl.tensor:
    """(slot, places, which of them are the tile's, their pairs); slot num_slots: there is no such tile."""
    lane_m = tl.arange(0, BLOCK_M)
    if not SORTED:
        slot = tl.load(offsets + tile).to(tl.int32)
        slot = tl.where((slot < 0) | (slot > num_slots), num_slots, slot)
        place = tile + lane_m
        return slot, place, lane_m < 1, place
    lane = tl.arange(0, SLOTS)
    first = tl.load(offsets + lane, mask=lane < num_slots, other=0)
    end = tl.load(offsets + lane + 1, mask=lane < num_slots, other=0)
    tiles = (end - first + BLOCK_M - 1) // BLOCK_M
    slot = tl.minimum(tl.sum((tl.cumsum(tiles, 0) <= tile).to(tl.int32), 0), num_slots)
    before = tl.sum(tl.where(lane < slot, tiles, 0), 0)
    place = tl.sum(tl.where(lane == slot, first, 0), 0) + (tile - before) * BLOCK_M + lane_m
    mine = place < tl.sum(tl.where(lane == slot, end, 0), 0)
    return slot, place, mine, tl.load(order + place, mask=mine, other=0)
