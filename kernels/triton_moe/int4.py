"""Experts whose weights are 4-bit codes (`kernels.int4`), multiplied out on the way: a draft's mixture.

One row takes three launches (gate, up and activation; down; the ordered sum), several rows one more that sorts their
pairs. The sum is not part of `down`: K experts one after another in a program would take K times as long as side by
side, which is longer than a launch.

Letters: T rows, K choices, N = T * K pairs and their places, E experts, D hidden, F ffn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from smoe.kernels.int4 import code_bytes, num_groups
from smoe.kernels.int4_table import Int4Table
from smoe.kernels.routing.launch import block_of, blocks, device_function, launch, use_triton
from smoe.kernels.triton_moe.activation import activate
from smoe.kernels.triton_moe.form import Kind, form_of
from smoe.kernels.triton_moe.grouped import down_ref, gate_up_ref
from smoe.kernels.triton_moe.tiles import Places, Tiling, find_tile, max_tiles, slots_block

if TYPE_CHECKING:
    import triton.language as tl

# A code c in the lowest bits of the number 2^m makes it 2^m + c, m the mantissa's width: (bits of 2^m, 2^m + 8).
MAGIC = {torch.bfloat16: (0x4300, 136.0), torch.float16: (0x6400, 1032.0), torch.float32: (0x4B000000, 8388616.0)}

STEP = 256  # columns of one turn of the inner loop, at most


def int4_gate_up(x_TD: Tensor, places: Places, per_row: int, table: Int4Table) -> Tensor:
    """`grouped.gate_up` of 4-bit experts; its twin is that one's.

    Codes are multiplied with x as whole numbers and each group's sum by its scale, in fp32: weights are not rounded.
    """
    kind = _kind(x_TD, table)
    if kind is None:
        return gate_up_ref(x_TD, places, per_row, table)
    x_TD = x_TD if x_TD.stride(1) == 1 else x_TD.contiguous()
    h_NF = torch.empty(len(places.order_N), table.ffn, dtype=x_TD.dtype, device=x_TD.device)
    tile, flags = _shape(places, table, x_TD.dtype, table.hidden)
    grid = (max_tiles(places, table.num_slots, tile.block_m), blocks(table.ffn, tile.block_n))
    tensors = (x_TD, places.order_N, places.offsets, form_of(table).words_WS, h_NF)
    sizes = (per_row, table.num_slots, table.hidden, table.ffn, code_bytes(table.hidden), x_TD.stride(0))
    numbers = (*kind.strides[:4], float(table.alpha), float(table.limit))
    flags |= {"GPTOSS": table.act == "gptoss", "GATE_BIAS": kind.biases[0], "UP_BIAS": kind.biases[1]}
    launch(_gate_up, grid, x_TD, *tensors, *sizes, *numbers, **flags)
    return h_NF


def int4_down(h_NF: Tensor, places: Places, table: Int4Table, out_ND: Tensor) -> None:
    """`grouped.down` of 4-bit experts; its twin is that one's."""
    kind = _kind(h_NF, table)
    if kind is None:
        return down_ref(h_NF, places, table, out_ND)
    tile, flags = _shape(places, table, h_NF.dtype, table.ffn)
    grid = (max_tiles(places, table.num_slots, tile.block_m), blocks(table.hidden, tile.block_n))
    tensors = (h_NF, places.order_N, places.offsets, form_of(table).words_WS, out_ND)
    sizes = (table.num_slots, table.hidden, table.ffn, code_bytes(table.ffn), out_ND.stride(0), *kind.strides[4:])
    launch(_down, grid, h_NF, *tensors, *sizes, **flags, BIAS=kind.biases[2])


def _kind(x: Tensor, table: Int4Table) -> Kind | None:
    return form_of(table).current(x.device) if use_triton(x) else None


def _shape(
    places: Places, table: Int4Table, dtype: torch.dtype, columns: int
) -> tuple[Tiling, dict[str, int | float | bool]]:
    """Few rows share an expert in a draft: one small tile. A turn of the inner loop is several groups, so that it waits
    once for all of their scales: one by one these are too narrow to be fetched ahead of their use."""
    tile = Tiling(16, 16 if dtype is torch.float32 else 64, table.group_size, 3, 4)
    chunk = block_of(num_groups(columns, table.group_size), STEP // table.group_size)
    bits, zero = MAGIC[dtype]
    slots = slots_block(table.num_slots)
    flags: dict[str, int | float | bool] = {"STAGES": tile.num_stages, "CHUNK": chunk}
    flags |= {"ALIGNED": form_of(table).aligned, "SORTED": places.is_sorted, "SLOTS": slots, "BITS": bits, "ZERO": zero}
    return tile, flags | tile.options()


@device_function
def whole_numbers(codes: tl.tensor, like: tl.tensor, BITS: tl.constexpr, ZERO: tl.constexpr) -> tl.tensor:
    """(low halves, high halves) minus 8, of the type that `like` points to."""
    if like.dtype.element_ty == tl.float32:
        low, high = (codes & 15).to(tl.int32) | BITS, (codes >> 4).to(tl.int32) | BITS
    else:
        low, high = (codes & 15).to(tl.int16) | BITS, (codes >> 4).to(tl.int16) | BITS
    low = low.to(like.dtype.element_ty, bitcast=True) - ZERO
    return low, high.to(like.dtype.element_ty, bitcast=True) - ZERO


def _gate_up(
    x: tl.tensor,
    order: tl.tensor,
    offsets: tl.tensor,
    words: tl.tensor,
    out: tl.tensor,
    per_row: tl.tensor,
    num_slots: tl.tensor,
    dim: tl.tensor,
    ffn: tl.tensor,
    num_bytes: tl.tensor,
    x_stride: tl.tensor,
    gate_stride: tl.tensor,
    num_groups: tl.tensor,
    up_stride: tl.tensor,
    _: tl.tensor,
    alpha: tl.tensor,
    limit: tl.tensor,
    GPTOSS: tl.constexpr,
    GATE_BIAS: tl.constexpr,
    UP_BIAS: tl.constexpr,
    ALIGNED: tl.constexpr,
    SORTED: tl.constexpr,
    SLOTS: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    slot, place, mine, pair = find_tile(order, offsets, tl.program_id(0), num_slots, SORTED, SLOTS, BLOCK_M)
    if slot == num_slots:
        return
    gate = tl.load(words + slot).to(tl.pointer_type(tl.uint8))
    gate_scales = tl.load(words + num_slots + slot).to(tl.pointer_type(tl.bfloat16))
    up = tl.load(words + 2 * num_slots + slot).to(tl.pointer_type(tl.uint8))
    up_scales = tl.load(words + 3 * num_slots + slot).to(tl.pointer_type(tl.bfloat16))
    if ALIGNED:
        gate = tl.multiple_of(gate, 16)
        up = tl.multiple_of(up, 16)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = column < ffn
    lane = tl.arange(0, BLOCK_K // 2)
    low = lane // 16 * 32 + lane % 16  # the column whose code a byte's low half is; the high half's is 16 further
    x_at = x + (pair // per_row).to(tl.int64)[:, None] * x_stride + low[None, :]
    gate_at = gate + column.to(tl.int64)[None, :] * gate_stride + lane[:, None]
    up_at = up + column.to(tl.int64)[None, :] * up_stride + lane[:, None]
    each = tl.arange(0, CHUNK)
    gate_scale_at = gate_scales + column[:, None] * num_groups + each[None, :]
    up_scale_at = up_scales + column[:, None] * num_groups + each[None, :]
    gate_sum = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up_sum = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for base in tl.range(0, num_groups, CHUNK, num_stages=STAGES):
        known = inside[:, None] & (base + each < num_groups)[None, :]
        gate_scale = tl.load(gate_scale_at + base, mask=known, other=0.0).to(tl.float32)
        up_scale = tl.load(up_scale_at + base, mask=known, other=0.0).to(tl.float32)
        for i in tl.static_range(CHUNK):
            k = (base + i) * BLOCK_K
            x_low = tl.load(x_at + k, mask=mine[:, None] & (k + low < dim)[None, :], other=0.0)
            x_high = tl.load(x_at + k + 16, mask=mine[:, None] & (k + low + 16 < dim)[None, :], other=0.0)
            used = (k // 2 + lane < num_bytes)[:, None] & inside[None, :]
            gate_low, gate_high = whole_numbers(tl.load(gate_at + k // 2, mask=used, other=0), x, BITS, ZERO)
            up_low, up_high = whole_numbers(tl.load(up_at + k // 2, mask=used, other=0), x, BITS, ZERO)
            gate_part = tl.dot(x_low, gate_low, input_precision="ieee")
            gate_part = tl.dot(x_high, gate_high, gate_part, input_precision="ieee")
            up_part = tl.dot(x_low, up_low, input_precision="ieee")
            up_part = tl.dot(x_high, up_high, up_part, input_precision="ieee")
            gate_sum += gate_part * tl.sum(tl.where(each[None, :] == i, gate_scale, 0.0), 1)[None, :]
            up_sum += up_part * tl.sum(tl.where(each[None, :] == i, up_scale, 0.0), 1)[None, :]
    if GATE_BIAS:
        gate_bias = tl.load(words + 6 * num_slots + slot).to(tl.pointer_type(tl.float32))
        gate_sum += tl.load(gate_bias + column, mask=inside, other=0.0)[None, :]
    if UP_BIAS:
        up_bias = tl.load(words + 7 * num_slots + slot).to(tl.pointer_type(tl.float32))
        up_sum += tl.load(up_bias + column, mask=inside, other=0.0)[None, :]
    h = activate(gate_sum, up_sum, alpha, limit, GPTOSS)
    # The slot holds no expert: what it read is another one's.
    h = tl.where(tl.load(words + 9 * num_slots + slot) == 0, float("nan"), h)
    at = out + place.to(tl.int64)[:, None] * ffn + column[None, :]
    tl.store(at, h.to(out.dtype.element_ty), mask=mine[:, None] & inside[None, :])


def _down(
    h: tl.tensor,
    order: tl.tensor,
    offsets: tl.tensor,
    words: tl.tensor,
    out: tl.tensor,
    num_slots: tl.tensor,
    dim: tl.tensor,
    ffn: tl.tensor,
    num_bytes: tl.tensor,
    out_stride: tl.tensor,
    down_stride: tl.tensor,
    num_groups: tl.tensor,
    BIAS: tl.constexpr,
    ALIGNED: tl.constexpr,
    SORTED: tl.constexpr,
    SLOTS: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    slot, place, mine, pair = find_tile(order, offsets, tl.program_id(0), num_slots, SORTED, SLOTS, BLOCK_M)
    if slot == num_slots:
        return
    down = tl.load(words + 4 * num_slots + slot).to(tl.pointer_type(tl.uint8))
    scales = tl.load(words + 5 * num_slots + slot).to(tl.pointer_type(tl.bfloat16))
    if ALIGNED:
        down = tl.multiple_of(down, 16)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = column < dim
    lane = tl.arange(0, BLOCK_K // 2)
    low = lane // 16 * 32 + lane % 16
    h_at = h + place.to(tl.int64)[:, None] * ffn + low[None, :]
    down_at = down + column.to(tl.int64)[None, :] * down_stride + lane[:, None]
    each = tl.arange(0, CHUNK)
    scale_at = scales + column[:, None] * num_groups + each[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for base in tl.range(0, num_groups, CHUNK, num_stages=STAGES):
        known = inside[:, None] & (base + each < num_groups)[None, :]
        scale = tl.load(scale_at + base, mask=known, other=0.0).to(tl.float32)
        for i in tl.static_range(CHUNK):
            k = (base + i) * BLOCK_K
            h_low = tl.load(h_at + k, mask=mine[:, None] & (k + low < ffn)[None, :], other=0.0)
            h_high = tl.load(h_at + k + 16, mask=mine[:, None] & (k + low + 16 < ffn)[None, :], other=0.0)
            used = (k // 2 + lane < num_bytes)[:, None] & inside[None, :]
            down_low, down_high = whole_numbers(tl.load(down_at + k // 2, mask=used, other=0), h, BITS, ZERO)
            part = tl.dot(h_low, down_low, input_precision="ieee")
            part = tl.dot(h_high, down_high, part, input_precision="ieee")
            total += part * tl.sum(tl.where(each[None, :] == i, scale, 0.0), 1)[None, :]
    if BIAS:
        bias = tl.load(words + 8 * num_slots + slot).to(tl.pointer_type(tl.float32))
        total += tl.load(bias + column, mask=inside, other=0.0)[None, :]
    at = out + pair.to(tl.int64)[:, None] * out_stride + column[None, :]
    tl.store(at, total, mask=mine[:, None] & inside[None, :])
