"""Rows to devices under a bound on how many a device takes. Letters: T rows, G devices.

`smoe.clustering.align` is the same rule in numpy. The chunks follow by `bins.sort_by_bin(placed, num_devices, chunk)`:
equal ones with their padding (`chunk` = the capacity), or ragged ones back to back (no `chunk`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from smoe.kernels.routing.launch import blocks, launch, use_triton

if TYPE_CHECKING:
    import triton.language as tl


def align(device_T: Tensor, second_T: Tensor, confidence_T: Tensor, num_devices: int, capacity: int) -> Tensor:
    """[T] i32: the device that takes each row, none more than `capacity`; `num_devices * capacity` must cover T.

    A device keeps its surest rows (equal ones in row order). Those that spill go to their second choice, the surest
    first, while there is room; what is left fills the devices in order of id, the surest first.
    """
    num_rows = len(device_T)
    if num_devices * capacity < num_rows:
        raise ValueError(f"align: capacity={capacity} on {num_devices} devices does not hold {num_rows} rows")
    placed_T = torch.full((num_rows,), -1, dtype=torch.int32, device=device_T.device)
    room_G = torch.full((num_devices,), capacity, dtype=torch.int32, device=device_T.device)
    for wish_T in (device_T.to(torch.int32), second_T.to(torch.int32)):
        waiting_T = torch.where(placed_T < 0, wish_T, -1)
        taken_T = (waiting_T >= 0) & (rank_in_group(waiting_T, confidence_T) < room_G[wish_T])
        placed_T = torch.where(taken_T, wish_T, placed_T)
        room_G.scatter_add_(0, wish_T.long(), -taken_T.to(torch.int32))
    rank_T = rank_in_group(torch.where(placed_T < 0, 0, -1), confidence_T)
    filling_T = torch.searchsorted(room_G.cumsum(0, dtype=torch.int32), rank_T, right=True, out_int32=True)
    return torch.where(placed_T < 0, filling_T, placed_T)


def rank_in_group(group_T: Tensor, confidence_T: Tensor) -> Tensor:
    """[T] i32: how many rows of the same group are surer, or as sure and come before. Confidence is finite."""
    if not use_triton(group_T):
        return rank_in_group_ref(group_T, confidence_T)
    num_rows = len(group_T)
    rank_T = torch.empty(num_rows, dtype=torch.int32, device=group_T.device)
    grid = (blocks(num_rows, 32),)
    launch(
        _rank, grid, group_T, group_T.contiguous(), confidence_T.contiguous(), rank_T, num_rows, BLOCK=32, OTHERS=256
    )
    return rank_T


def rank_in_group_ref(group_T: Tensor, confidence_T: Tensor) -> Tensor:
    """The torch twin."""
    surest_T = confidence_T.sort(descending=True, stable=True).indices
    group_T, by_group_T = group_T[surest_T].sort(stable=True)
    row_T, place_T = surest_T[by_group_T], torch.arange(len(group_T), device=group_T.device)
    begins_T = torch.ones_like(group_T, dtype=torch.bool)
    begins_T[1:] = group_T[1:] != group_T[:-1]
    first_T = torch.where(begins_T, place_T, 0).cummax(0).values if len(group_T) else place_T
    return torch.zeros_like(place_T).scatter_(0, row_T, place_T - first_T).to(torch.int32)


def _rank(
    groups: tl.tensor,
    confidences: tl.tensor,
    ranks: tl.tensor,
    num_rows: tl.tensor,
    BLOCK: tl.constexpr,
    OTHERS: tl.constexpr,
) -> None:
    # Each row counts those before it: for the rows of a step that is one launch, where a sort takes several.
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    group = tl.load(groups + row, mask=row < num_rows, other=0)
    sure = tl.load(confidences + row, mask=row < num_rows, other=0.0)
    rank = tl.zeros((BLOCK,), tl.int32)
    for base in range(0, num_rows, OTHERS):
        other = base + tl.arange(0, OTHERS)
        other_group = tl.load(groups + other, mask=other < num_rows, other=0)[None, :]
        other_sure = tl.load(confidences + other, mask=other < num_rows, other=0.0)[None, :]
        equal = (other_sure == sure[:, None]) & (other[None, :] < row[:, None])
        before = (other_group == group[:, None]) & ((other_sure > sure[:, None]) | equal) & (other < num_rows)[None, :]
        rank += tl.sum(before.to(tl.int32), 1)
    tl.store(ranks + row, rank, mask=row < num_rows)
