"""Weights in 4 bits: symmetric, one bf16 scale for each group of columns of a row. N rows, K columns, G groups.

The one stored form, read by every kernel and kept on disk. A matrix [N, K] is two tensors:

    codes  uint8 [N, ceil(K / 32) * 16], rows one behind the other
    scales bf16  [N, ceil(K / group_size)]

Columns lie in blocks of 32, a block in 16 bytes. Byte j of block b holds column 32 b + j in its low half and column
32 b + 16 + j in its high half, so that the halves of 16 bytes are two runs of 16 neighbouring columns. A half holds
code = q + 8 with q in [-8, 7], and the weight is q * scale of group column // group_size. That product is exact in
fp32 (4 + 8 bits), so a kernel that multiplies it out in fp32 gives the bits of the same kernel over fp32 weights.
Scales may be negative. Groups are 32, 64 or 128 columns; the last may be shorter. Columns beyond K have code 8 (zero).

The 4-bit form of an expert is Int4Tensors; of a layer's experts, the same with a leading axis E.
"""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from smoe.kernels import native
from smoe.kernels.slots import ExpertTensors

BLOCK = 32
GROUP_SIZES = (32, 64, 128)
FORMAT_VERSION = 1
TINY = 1e-30  # in quantise.c
RATIOS = (7.0, *(-5.75 - 0.25 * i for i in range(16)))
"""What the group's largest weight may become as a code: 7 is plain rounding to nearest, the rest are searched too.
Up to 32."""


class Int4Tensors(NamedTuple):
    """One expert. Codes uint8 and scales bf16 as above of gate [F, D], up [F, D] and down [D, F]; biases fp32 [F], [F],
    [D]. Unit column stride; rows of codes may lie apart, those of scales may not."""

    gate: Tensor
    gate_scales: Tensor
    up: Tensor
    up_scales: Tensor
    down: Tensor
    down_scales: Tensor
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None


def expert_shapes(hidden: int, ffn: int, group_size: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Of the fields of Int4Tensors, in order. ValueError for a group size that there is none of."""
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for name, rows, columns in (("gate", ffn, hidden), ("up", ffn, hidden), ("down", hidden, ffn)):
        shapes[name] = torch.uint8, (rows, code_bytes(columns))
        shapes[f"{name}_scales"] = torch.bfloat16, (rows, num_groups(columns, group_size))
    return shapes | {
        f"{name}_bias": (torch.float32, (rows,))
        for name, rows in zip(("gate", "up", "down"), (ffn, ffn, hidden), strict=True)
    }


def code_bytes(columns: int) -> int:
    """Of a row's codes."""
    return -(-columns // BLOCK) * (BLOCK // 2)


def num_groups(columns: int, group_size: int) -> int:
    """Scales of a row. ValueError for a group size that there is none of."""
    if group_size not in GROUP_SIZES:
        raise ValueError(f"group_size: {group_size} (one of {', '.join(map(str, GROUP_SIZES))})")
    return -(-columns // group_size)


def quantise(weight_NK: Tensor, group_size: int, *, search: bool = True) -> tuple[Tensor, Tensor]:
    """(codes, scales) of an fp32 or bf16 matrix. Weights must be finite.

    With `search` the scale of a group is the one of RATIOS with the least sum of squared errors, which is never more
    than that of rounding to nearest with the largest weight at 7.
    """
    rows, columns = weight_NK.shape
    codes = torch.empty(rows, code_bytes(columns), dtype=torch.uint8, device=weight_NK.device)
    scales = torch.empty(rows, num_groups(columns, group_size), dtype=torch.bfloat16, device=weight_NK.device)
    lib = native.usable(weight_NK)
    if lib is None:
        return quantise_ref(weight_NK, group_size, search=search)
    weight_NK = weight_NK.contiguous()
    ratios = RATIOS if search else RATIOS[:1]
    inverses = (ctypes.c_float * len(ratios))(*(1.0 / ratio for ratio in ratios))
    lib.released.smoe_quantise(
        torch.get_num_threads(),
        weight_NK.data_ptr(),
        native.DTYPE_CODES[weight_NK.dtype],
        rows,
        columns,
        group_size,
        ctypes.addressof(inverses),
        len(ratios),
        codes.data_ptr(),
        scales.data_ptr(),
    )
    return codes, scales


def quantise_ref(weight_NK: Tensor, group_size: int, *, search: bool = True) -> tuple[Tensor, Tensor]:
    """The torch twin of quantise; a search may end in another of two scales that are equally good but for rounding."""
    (rows, columns), groups = weight_NK.shape, num_groups(weight_NK.shape[1], group_size)
    w_NGg = torch.nn.functional.pad(weight_NK.float(), (0, groups * group_size - columns)).view(rows, groups, -1)
    most_NG1, least_NG1 = w_NGg.amax(-1, keepdim=True), w_NGg.amin(-1, keepdim=True)
    largest_NG1 = torch.where(most_NG1 >= -least_NG1, most_NG1, least_NG1)
    largest_NG1 = torch.where(largest_NG1.abs() < TINY, 0.0, largest_NG1)
    best_q = best_scale = best_error = None
    for ratio in RATIOS if search else RATIOS[:1]:
        scale_NG1 = (largest_NG1 * torch.tensor(1.0 / ratio, dtype=torch.float32)).to(torch.bfloat16).float()
        inverse_NG1 = torch.where(scale_NG1 == 0, 0.0, 1.0 / scale_NG1)
        q_NGg = (w_NGg * inverse_NG1).round().clamp(-8, 7)
        error_NG1 = (w_NGg - q_NGg * scale_NG1).square().sum(-1, keepdim=True)
        if best_error is None or best_q is None or best_scale is None:
            best_q, best_scale, best_error = q_NGg, scale_NG1, error_NG1
            continue
        better = error_NG1 < best_error
        best_q, best_scale = torch.where(better, q_NGg, best_q), torch.where(better, scale_NG1, best_scale)
        best_error = torch.where(better, error_NG1, best_error)
    assert best_q is not None
    assert best_scale is not None
    padded = code_bytes(columns) * 2
    q_NK = torch.nn.functional.pad(best_q.view(rows, -1), (0, max(0, padded - groups * group_size)))[:, :padded]
    return pack(q_NK), best_scale.view(rows, groups).to(torch.bfloat16)


def pack(q_NK: Tensor) -> Tensor:
    """Codes of whole numbers q in [-8, 7], K a multiple of 32."""
    halves = (q_NK.view(len(q_NK), -1, 2, BLOCK // 2) + 8).to(torch.uint8)
    return (halves[:, :, 0] | halves[:, :, 1] << 4).view(len(q_NK), -1)


def dequantise(codes: Tensor, scales: Tensor, columns: int, group_size: int) -> Tensor:
    """fp32 [N, columns], exact. Leading axes are kept."""
    blocks = codes.view(*codes.shape[:-1], -1, 1, BLOCK // 2)
    q = torch.cat((blocks & 15, blocks >> 4), -2).flatten(-3).to(torch.float32)[..., :columns] - 8.0
    return q * scales.float().repeat_interleave(group_size, -1)[..., :columns]


def quantise_expert(expert: ExpertTensors, group_size: int, *, search: bool = True) -> Int4Tensors:
    """The 4-bit form; biases in fp32, which holds any dtype of theirs."""
    packed = [part for matrix in expert[:3] for part in quantise(matrix, group_size, search=search)]
    return Int4Tensors(*packed, *(None if bias is None else bias.float() for bias in expert[3:]))


def dequantise_expert(expert: Int4Tensors, hidden: int, ffn: int, group_size: int) -> ExpertTensors:
    """fp32 weights of the same values."""
    return ExpertTensors(
        dequantise(expert.gate, expert.gate_scales, hidden, group_size),
        dequantise(expert.up, expert.up_scales, hidden, group_size),
        dequantise(expert.down, expert.down_scales, ffn, group_size),
        *expert[6:],
    )
