"""Histogram and permutation: entries sorted by bin (an expert, a device). Letters: N entries, B bins, C chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from smoe.kernels.routing.launch import launch, use_triton

if TYPE_CHECKING:
    import triton.language as tl


class Bins(NamedTuple):
    """i32 throughout. `order[offsets[b] + i]` is the i-th entry of bin b, in the entries' own order; places that hold
    none are -1. `inverse[n]` is the place of entry n in `order`, -1 if it has none. `counts[b]` entries ask for bin b.

    Without a chunk, bins lie back to back and order is [N]. With one, bin b begins at b * C, order is [B * C], and what
    does not fit into its chunk has no place, though it is counted.
    """

    counts_B: Tensor
    offsets: Tensor
    order: Tensor
    inverse_N: Tensor


def sort_by_bin(bins: Tensor, num_bins: int, chunk: int | None = None) -> Bins:
    """`bins` of any integer dtype and shape, its values numbered row by row; outside of [0, num_bins): no bin."""
    if not use_triton(bins):
        return sort_by_bin_ref(bins, num_bins, chunk)
    bins = bins.contiguous()
    num_entries = bins.numel()
    sizes = (num_bins, num_bins + 1, num_entries if chunk is None else num_bins * chunk, num_entries)
    made = Bins(*(torch.empty(size, dtype=torch.int32, device=bins.device) for size in sizes))
    # Few sizes, because each is a kernel of its own.
    block = next((size for size in (128, 1024) if max(num_entries, chunk or 0) <= size), 4096)
    options = {"CHUNKED": chunk is not None, "BLOCK": block, "num_warps": 8 if block > 1024 else 4}
    launch(_sort, (num_bins + 1,), bins, bins, *made, num_entries, num_bins, chunk or 0, **options)
    return made


def sort_by_bin_ref(bins: Tensor, num_bins: int, chunk: int | None = None) -> Bins:
    """The torch twin."""
    bin_N = bins.flatten().long()
    bin_N = torch.where((bin_N < 0) | (bin_N >= num_bins), num_bins, bin_N)
    sorted_N, entry_N = bin_N.sort(stable=True)
    counts = torch.zeros(num_bins + 1, dtype=torch.long, device=bins.device)
    counts.scatter_add_(0, bin_N, torch.ones_like(bin_N))
    first = counts.cumsum(0) - counts
    rank_N = torch.arange(len(bin_N), device=bins.device) - first[sorted_N]
    offsets = first if chunk is None else torch.arange(num_bins + 1, device=bins.device) * chunk
    size = len(bin_N) if chunk is None else num_bins * chunk
    kept_N = sorted_N < num_bins if chunk is None else (sorted_N < num_bins) & (rank_N < chunk)
    place_N = torch.where(kept_N, offsets[sorted_N] + rank_N, -1)
    # Entries without a place share one past the end: a mask would wait for the device.
    order = torch.full((size + 1,), -1, device=bins.device).scatter_(0, torch.where(kept_N, place_N, size), entry_N)
    inverse_N = torch.empty_like(place_N).scatter_(0, entry_N, place_N)
    return Bins(*(t.to(torch.int32) for t in (counts[:num_bins], offsets, order[:size], inverse_N)))


def _sort(
    bins: tl.tensor,
    counts: tl.tensor,
    offsets: tl.tensor,
    order: tl.tensor,
    inverse: tl.tensor,
    num_entries: tl.tensor,
    num_bins: tl.tensor,
    chunk: tl.tensor,
    CHUNKED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    # One program a bin reads all entries twice: one launch, no order of arrival, and the second-level cache holds them.
    # The last program has those without a bin.
    mine = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    less = tl.zeros((BLOCK,), tl.int32)
    equal = tl.zeros((BLOCK,), tl.int32)
    for base in range(0, num_entries, BLOCK):
        at = base + lane
        found = tl.load(bins + at, mask=at < num_entries, other=0).to(tl.int32)
        found = tl.where((found < 0) | (found >= num_bins), num_bins, found)
        less += ((at < num_entries) & (found < mine)).to(tl.int32)
        equal += ((at < num_entries) & (found == mine)).to(tl.int32)
    count = tl.sum(equal, 0)
    first = tl.sum(less, 0)
    limit = num_entries
    if CHUNKED:
        first = mine * chunk
        limit = tl.where(mine < num_bins, chunk, 0)
    tl.store(offsets + mine, first)
    tl.store(counts + mine, count, mask=mine < num_bins)
    seen = 0
    for base in range(0, num_entries, BLOCK):
        at = base + lane
        found = tl.load(bins + at, mask=at < num_entries, other=0).to(tl.int32)
        found = tl.where((found < 0) | (found >= num_bins), num_bins, found)
        hit = (at < num_entries) & (found == mine)
        rank = seen + tl.cumsum(hit.to(tl.int32), 0) - 1
        kept = hit & (rank < limit)
        real = found < num_bins
        tl.store(order + first + rank, tl.where(real, at, -1), mask=kept)
        tl.store(inverse + at, tl.where(kept & real, first + rank, -1), mask=hit)
        seen += tl.sum(hit.to(tl.int32), 0)
    if CHUNKED:
        for base in range(0, chunk, BLOCK):
            rank = base + lane
            tl.store(order + first + rank, -1, mask=(rank >= count) & (rank < limit))
