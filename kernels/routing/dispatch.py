"""What a rank sends where, each row once a device, and the sum of what comes back.

Letters: T rows, K choices, G devices, D hidden, S places in send order, S = T * min(G, K).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from smoe.kernels.routing.bins import sort_by_bin
from smoe.kernels.routing.launch import block_of, blocks, launch, use_triton

if TYPE_CHECKING:
    import triton.language as tl

CACHED_VALUES = 1 << 15  # of a twin's working rows: larger ones are new memory at each call, several times as slow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DispatchPlan:
    """i32 throughout. Place s of the send order, device by device and in row order, holds row `row_S[s]` for device
    `device_S[s]`; the rows for device g lie from `offsets[g]` on, `counts_G[g]` of them. Places past offsets[G] are -1.

    `place_TG[t, g]` is where row t lies for device g, -1 if it needs none of g's experts. What device g answers comes
    back in the same places, so `place_TG` is also where the partial sums of a row are.
    """

    counts_G: Tensor
    offsets: Tensor
    row_S: Tensor
    device_S: Tensor
    place_TG: Tensor


def plan_dispatch(device_TK: Tensor, num_devices: int) -> DispatchPlan:
    """`device_TK` integer: the device of each choice's expert, negative: the choice is left out."""
    num_rows, num_choices = device_TK.shape
    bins = sort_by_bin(needed_devices(device_TK, num_devices), num_devices)
    order_S = bins.order[: num_rows * min(num_devices, num_choices)]
    return DispatchPlan(
        counts_G=bins.counts_B,
        offsets=bins.offsets,
        row_S=torch.where(order_S < 0, -1, order_S // num_devices),
        device_S=torch.where(order_S < 0, -1, order_S % num_devices),
        place_TG=bins.inverse_N.view(num_rows, num_devices),
    )


def needed_devices(device_TK: Tensor, num_devices: int) -> Tensor:
    """[T, G] i32: g where a row needs device g, else -1."""
    if not use_triton(device_TK):
        return needed_devices_ref(device_TK, num_devices)
    device_TK = device_TK.contiguous()
    num_rows, num_choices = device_TK.shape
    needed_TG = torch.empty(num_rows, num_devices, dtype=torch.int32, device=device_TK.device)
    block_g = block_of(num_devices)
    block_t = max(1, 1024 // block_g)
    grid = (blocks(num_rows, block_t),)
    sizes = {"BLOCK_T": block_t, "BLOCK_G": block_g}
    launch(_needed, grid, device_TK, device_TK, needed_TG, num_rows, num_choices, num_devices, **sizes)
    return needed_TG


def needed_devices_ref(device_TK: Tensor, num_devices: int) -> Tensor:
    """The torch twin."""
    all_G = torch.arange(num_devices, dtype=torch.int32, device=device_TK.device)
    # A column past the last device takes the choices that are left out: a mask would wait for the device.
    column_TK = torch.where((device_TK < 0) | (device_TK >= num_devices), num_devices, device_TK.long())
    needed = torch.zeros(len(device_TK), num_devices + 1, dtype=torch.bool, device=device_TK.device)
    return torch.where(needed.scatter_(1, column_TK, True)[:, :num_devices], all_G, -1)


def pack_choices(plan: DispatchPlan, device_TK: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> tuple[Tensor, Tensor]:
    """(ids [S, K] in ids' dtype, weights [S, K]) that travel with the rows: id -1 and weight 0 where the choice is of
    another device, and in places that hold no row."""
    if not use_triton(ids_TK):
        return pack_choices_ref(plan, device_TK, ids_TK, weights_TK)
    num_places, num_choices = len(plan.row_S), ids_TK.shape[1]
    device_TK, ids_TK, weights_TK = device_TK.contiguous(), ids_TK.contiguous(), weights_TK.contiguous()
    ids_SK, weights_SK = (
        torch.empty(num_places, num_choices, dtype=t.dtype, device=t.device) for t in (ids_TK, weights_TK)
    )
    block = 1024
    grid = (blocks(num_places * num_choices, block),)
    tensors = (plan.row_S, plan.device_S, device_TK, ids_TK, weights_TK, ids_SK, weights_SK)
    launch(_pack, grid, ids_TK, *tensors, num_places * num_choices, num_choices, BLOCK=block)
    return ids_SK, weights_SK


def pack_choices_ref(
    plan: DispatchPlan, device_TK: Tensor, ids_TK: Tensor, weights_TK: Tensor
) -> tuple[Tensor, Tensor]:
    """The torch twin."""
    row_S = plan.row_S.clamp(min=0)
    mine_SK = (device_TK[row_S] == plan.device_S[:, None]) & (plan.row_S >= 0)[:, None]
    return ids_TK[row_S].masked_fill(~mine_SK, -1), weights_TK[row_S].masked_fill(~mine_SK, 0.0)


def sum_places(
    partials_SD: Tensor, place_TG: Tensor, out_dtype: torch.dtype, residual_TD: Tensor | None = None
) -> Tensor:
    """residual + sum over devices, ascending, of partials[place_TG[t, g]] -> [T, D]; in fp32 and then rounded once.

    Devices with a negative place are left out. The sum is made first and then added to the residual.
    """
    if not use_triton(partials_SD):
        return sum_places_ref(partials_SD, place_TG, out_dtype, residual_TD)
    partials_SD, place_TG = partials_SD.contiguous(), place_TG.contiguous()
    (num_rows, num_devices), dim = place_TG.shape, partials_SD.shape[1]
    out_TD = torch.empty(num_rows, dim, dtype=out_dtype, device=partials_SD.device)
    residual = out_TD if residual_TD is None else residual_TD.contiguous()
    block = block_of(dim, 1024)
    options = {"RESIDUAL": residual_TD is not None, "BLOCK": block}
    grid = (num_rows, blocks(dim, block))
    launch(_sum, grid, partials_SD, partials_SD, place_TG, residual, out_TD, dim, num_devices, **options)
    return out_TD


def sum_places_ref(
    partials_SD: Tensor, place_TG: Tensor, out_dtype: torch.dtype, residual_TD: Tensor | None = None
) -> Tensor:
    """The torch twin."""
    out_TD = torch.empty(len(place_TG), partials_SD.shape[1], dtype=out_dtype, device=partials_SD.device)
    step = max(1, len(place_TG) if out_TD.is_cuda else CACHED_VALUES // max(1, out_TD.shape[1]))
    for begin in range(0, len(place_TG), step):
        rows = slice(begin, begin + step)
        sum_TD = torch.zeros_like(out_TD[rows], dtype=torch.float32)
        for place_T in place_TG[rows].unbind(1):
            row_N = (place_T >= 0).nonzero().flatten()
            sum_TD.index_add_(0, row_N, partials_SD.index_select(0, place_T[row_N]).float())
        out_TD[rows] = sum_TD if residual_TD is None else residual_TD[rows].float() + sum_TD
    return out_TD


def _needed(
    device: tl.tensor,
    needed: tl.tensor,
    num_rows: tl.tensor,
    num_choices: tl.tensor,
    num_devices: tl.tensor,
    BLOCK_T: tl.constexpr,
    BLOCK_G: tl.constexpr,
) -> None:
    row = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    all_devices = tl.arange(0, BLOCK_G)
    found = tl.full((BLOCK_T, BLOCK_G), -1, tl.int32)
    for choice in range(num_choices):
        chosen = tl.load(device + row * num_choices + choice, mask=row < num_rows, other=-1).to(tl.int32)
        found = tl.where(chosen[:, None] == all_devices[None, :], all_devices[None, :], found)
    inside = (row < num_rows)[:, None] & (all_devices < num_devices)[None, :]
    tl.store(needed + row[:, None] * num_devices + all_devices[None, :], found, mask=inside)


def _pack(
    row_of: tl.tensor,
    device_of: tl.tensor,
    device: tl.tensor,
    ids: tl.tensor,
    weights: tl.tensor,
    packed_ids: tl.tensor,
    packed_weights: tl.tensor,
    num_values: tl.tensor,
    num_choices: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_values
    row = tl.load(row_of + at // num_choices, mask=inside, other=-1)
    target = tl.load(device_of + at // num_choices, mask=inside, other=-1)
    there = row * num_choices + at % num_choices
    mine = (row >= 0) & (tl.load(device + there, mask=row >= 0, other=-1) == target)
    tl.store(packed_ids + at, tl.load(ids + there, mask=mine, other=-1), mask=inside)
    tl.store(packed_weights + at, tl.load(weights + there, mask=mine, other=0.0), mask=inside)


def _sum(
    partials: tl.tensor,
    places: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    dim: tl.tensor,
    num_devices: tl.tensor,
    RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for device in range(num_devices):
        place = tl.load(places + row * num_devices + device).to(tl.int64)
        # What is left out adds zero: that changes no bit of a sum that began with +0.
        used = column < tl.where(place < 0, 0, dim)
        total += tl.load(partials + place * dim + column, mask=used, other=0.0).to(tl.float32)
    if RESIDUAL:
        total = tl.load(residual + row * dim + column, mask=column < dim, other=0.0).to(tl.float32) + total
    tl.store(out + row * dim + column, total.to(out.dtype.element_ty), mask=column < dim)
