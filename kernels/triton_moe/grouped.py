"""Experts in fp32, bf16 or fp16 over rows ordered by slot: a launch for gate, up and activation, and one for down.

A launch needs an ExpertTable whose slots are of one kind; the twins take any table.

Letters: T rows, K choices, N = T * K pairs and their places, S slots, D hidden, F ffn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from smoe.kernels.routing.launch import blocks, launch, use_triton
from smoe.kernels.slots import SlotTable
from smoe.kernels.triton_moe.activation import activate
from smoe.kernels.triton_moe.form import Kind, form_of
from smoe.kernels.triton_moe.tiles import Places, Tiling, find_tile, max_tiles, slots_block, tiling
from smoe.kernels.twin import matmul

if TYPE_CHECKING:
    import triton.language as tl


def gate_up(x_TD: Tensor, places: Places, per_row: int, table: SlotTable[Any]) -> Tensor:
    """[N, F] of x's dtype: place n holds act(gate(x)) * up(x) of its pair, whose row is pair // per_row.

    Places of pairs without a slot are not written.
    """
    kind = _kind(x_TD, table)
    if kind is None:
        return gate_up_ref(x_TD, places, per_row, table)
    x_TD = x_TD if x_TD.stride(1) == 1 else x_TD.contiguous()
    h_NF = torch.empty(len(places.order_N), table.ffn, dtype=x_TD.dtype, device=x_TD.device)
    tile, flags = _shape(places, table, kind, x_TD.dtype)
    grid = (max_tiles(places, table.num_slots, tile.block_m), blocks(table.ffn, tile.block_n))
    form = form_of(table)
    tensors = (x_TD, places.order_N, places.offsets, form.words_WS, form.sample(), h_NF)
    sizes = (per_row, table.num_slots, table.hidden, table.ffn, x_TD.stride(0), *kind.strides[:2])
    numbers = (float(table.alpha), float(table.limit))
    flags |= {"GPTOSS": table.act == "gptoss", "GATE_BIAS": kind.biases[0], "UP_BIAS": kind.biases[1]}
    launch(_gate_up, grid, x_TD, *tensors, *sizes, *numbers, **flags)
    return h_NF


def gate_up_ref(x_TD: Tensor, places: Places, per_row: int, table: SlotTable[Any]) -> Tensor:
    """The torch twin."""
    h_NF = torch.empty(len(places.order_N), table.ffn, dtype=x_TD.dtype, device=x_TD.device)
    for slot, place, pair in places.groups(table.num_slots):
        h_NF[place] = table.activated_ref(slot, x_TD[pair // per_row])
    return h_NF


def down(h_NF: Tensor, places: Places, table: SlotTable[Any], out_ND: Tensor) -> None:
    """out[pair] = down(h[its place]), fp32; pairs without a slot stay untouched."""
    kind = _kind(h_NF, table)
    if kind is None:
        return down_ref(h_NF, places, table, out_ND)
    tile, flags = _shape(places, table, kind, h_NF.dtype)
    grid = (max_tiles(places, table.num_slots, tile.block_m), blocks(table.hidden, tile.block_n))
    form = form_of(table)
    tensors = (h_NF, places.order_N, places.offsets, form.words_WS, form.sample(), out_ND)
    sizes = (table.num_slots, table.hidden, table.ffn, out_ND.stride(0), kind.strides[2])
    launch(_down, grid, h_NF, *tensors, *sizes, **flags, BIAS=kind.biases[2])


def down_ref(h_NF: Tensor, places: Places, table: SlotTable[Any], out_ND: Tensor) -> None:
    """The torch twin."""
    for slot, place, pair in places.groups(table.num_slots):
        expert = table.weights(slot)
        y_ND = matmul(h_NF[place], expert.down)
        out_ND[pair] = y_ND if expert.down_bias is None else y_ND + expert.down_bias.float()


def _kind(x: Tensor, table: SlotTable[Any]) -> Kind | None:
    return form_of(table).current(x.device) if use_triton(x) else None


def _shape(places: Places, table: SlotTable[Any], kind: Kind, dtype: torch.dtype) -> tuple[Tiling, dict[str, object]]:
    tile = tiling(len(places.order_N), table.num_slots, torch.promote_types(dtype, kind.dtype))
    flags = {"WIDE": dtype is not kind.dtype, "ALIGNED": form_of(table).aligned, "SORTED": places.is_sorted}
    return tile, flags | {"SLOTS": slots_block(table.num_slots), **tile.options()}


def _gate_up(
    x: tl.tensor,
    order: tl.tensor,
    offsets: tl.tensor,
    words: tl.tensor,
    sample: tl.tensor,
    out: tl.tensor,
    per_row: tl.tensor,
    num_slots: tl.tensor,
    dim: tl.tensor,
    ffn: tl.tensor,
    x_stride: tl.tensor,
    gate_stride: tl.tensor,
    up_stride: tl.tensor,
    alpha: tl.tensor,
    limit: tl.tensor,
    GPTOSS: tl.constexpr,
    GATE_BIAS: tl.constexpr,
    UP_BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    SORTED: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    slot, place, mine, pair = find_tile(order, offsets, tl.program_id(0), num_slots, SORTED, SLOTS, BLOCK_M)
    if slot == num_slots:
        return
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    gate = tl.load(words + slot).to(sample.dtype)
    up = tl.load(words + num_slots + slot).to(sample.dtype)
    if ALIGNED:
        gate = tl.multiple_of(gate, 16)
        up = tl.multiple_of(up, 16)
    lane = tl.arange(0, BLOCK_K)
    x_at = x + (pair // per_row).to(tl.int64)[:, None] * x_stride + lane[None, :]
    gate_at = gate + column.to(tl.int64)[None, :] * gate_stride + lane[:, None]
    up_at = up + column.to(tl.int64)[None, :] * up_stride + lane[:, None]
    gate_sum = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up_sum = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, dim, BLOCK_K):
        inside = k + lane < dim
        used = inside[:, None] & (column < ffn)[None, :]
        x_tile = tl.load(x_at + k, mask=mine[:, None] & inside[None, :], other=0.0)
        gate_tile = tl.load(gate_at + k, mask=used, other=0.0)
        up_tile = tl.load(up_at + k, mask=used, other=0.0)
        if WIDE:
            x_tile, gate_tile, up_tile = x_tile.to(tl.float32), gate_tile.to(tl.float32), up_tile.to(tl.float32)
        gate_sum = tl.dot(x_tile, gate_tile, gate_sum, input_precision="ieee")
        up_sum = tl.dot(x_tile, up_tile, up_sum, input_precision="ieee")
    if GATE_BIAS:
        gate_bias = tl.load(words + 3 * num_slots + slot).to(sample.dtype)
        gate_sum += tl.load(gate_bias + column, mask=column < ffn, other=0.0).to(tl.float32)[None, :]
    if UP_BIAS:
        up_bias = tl.load(words + 4 * num_slots + slot).to(sample.dtype)
        up_sum += tl.load(up_bias + column, mask=column < ffn, other=0.0).to(tl.float32)[None, :]
    h = activate(gate_sum, up_sum, alpha, limit, GPTOSS)
    # The slot holds no expert: what it read is another one's.
    h = tl.where(tl.load(words + 6 * num_slots + slot) == 0, float("nan"), h)
    at = out + place.to(tl.int64)[:, None] * ffn + column[None, :]
    tl.store(at, h.to(out.dtype.element_ty), mask=mine[:, None] & (column < ffn)[None, :])


def _down(
    h: tl.tensor,
    order: tl.tensor,
    offsets: tl.tensor,
    words: tl.tensor,
    sample: tl.tensor,
    out: tl.tensor,
    num_slots: tl.tensor,
    dim: tl.tensor,
    ffn: tl.tensor,
    out_stride: tl.tensor,
    down_stride: tl.tensor,
    BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    SORTED: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    slot, place, mine, pair = find_tile(order, offsets, tl.program_id(0), num_slots, SORTED, SLOTS, BLOCK_M)
    if slot == num_slots:
        return
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    down = tl.load(words + 2 * num_slots + slot).to(sample.dtype)
    if ALIGNED:
        down = tl.multiple_of(down, 16)
    lane = tl.arange(0, BLOCK_K)
    h_at = h + place.to(tl.int64)[:, None] * ffn + lane[None, :]
    down_at = down + column.to(tl.int64)[None, :] * down_stride + lane[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, ffn, BLOCK_K):
        inside = k + lane < ffn
        h_tile = tl.load(h_at + k, mask=mine[:, None] & inside[None, :], other=0.0)
        down_tile = tl.load(down_at + k, mask=inside[:, None] & (column < dim)[None, :], other=0.0)
        if WIDE:
            h_tile, down_tile = h_tile.to(tl.float32), down_tile.to(tl.float32)
        total = tl.dot(h_tile, down_tile, total, input_precision="ieee")
    if BIAS:
        bias = tl.load(words + 5 * num_slots + slot).to(sample.dtype)
        total += tl.load(bias + column, mask=column < dim, other=0.0).to(tl.float32)[None, :]
    at = out + pair.to(tl.int64)[:, None] * out_stride + column[None, :]
    tl.store(at, total, mask=mine[:, None] & (column < dim)[None, :])
