"""What the 4-bit form of a bf16 matrix does not know of it: with both, the matrix is rebuilt bit for bit.

A pattern is the 16 bits of a bf16 value. A code q of scale s stands for the upper 16 bits of the fp32 product q * s,
code 0 for those of |s| / 2. Of a weight, one byte b is kept beside its code:

    code other than 0    pattern = that of the code + b, b from -127 to 127
    code 0               pattern = that of the code - (b & 127), with the sign bit b >> 7: the octave below |s| / 2
    b = 0x80             the pattern is listed, 16 bits, little-endian

Rows lie one behind the other, each K bytes and then its listed patterns in order. Every matrix has such a form: what
does not fit is listed. Of trained weights that is 6 %, so that 1.12 bytes are kept of a weight's 2.

Rows are rebuilt in order, in blocks of 32 columns, so the result may lie over the residual's own memory where each row
of the result begins at least K + MARGIN bytes before the row of the residual that it is made from.

N rows, K columns, G groups.
"""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from smoe.kernels import native
from smoe.kernels.int4 import BLOCK

FORMAT_VERSION = 1
MARGIN = 64
_LISTED = 0x80
_CHUNK = 1 << 17  # weights that are encoded at a time


class Residual(NamedTuple):
    """`content` uint8; `row_bytes` i64 [N] of it for each row; `check` is the sum of the patterns modulo 2^16."""

    content: Tensor
    row_bytes: Tensor
    check: int


class Decoded(NamedTuple):
    """`nbytes` of the residual were read."""

    nbytes: int
    check: int


def encode(weight_NK: Tensor, codes: Tensor, scales: Tensor, group_size: int) -> Residual:
    """Of a bf16 matrix on the CPU, with its 4-bit form as `quantise` gives it, or any other."""
    lib = native.library()
    if lib is None:
        return encode_ref(weight_NK, codes, scales, group_size)
    assert scales.is_contiguous()
    assert codes.stride(1) == 1
    weight_NK, (rows, columns) = weight_NK.contiguous(), weight_NK.shape
    content = torch.empty(3 * weight_NK.numel() + 2, dtype=torch.uint8)
    row_bytes, used = torch.empty(rows, dtype=torch.int64), (ctypes.c_int64 * 2)()
    lib.released.smoe_residual_of(
        1,
        weight_NK.data_ptr(),
        codes.data_ptr(),
        codes.stride(0),
        scales.data_ptr(),
        rows,
        columns,
        group_size,
        content.data_ptr(),
        row_bytes.data_ptr(),
        ctypes.addressof(used),
    )
    return Residual(content[: used[0]].clone(), row_bytes, used[1])


def encode_ref(weight_NK: Tensor, codes: Tensor, scales: Tensor, group_size: int) -> Residual:
    """The torch twin of encode."""
    rows, columns = weight_NK.shape
    step = max(1, _CHUNK // columns)
    parts = [
        _encode(weight_NK[at : at + step].contiguous(), codes[at : at + step], scales[at : at + step], group_size)
        for at in range(0, rows, step)
    ]
    content, row_bytes, checks = zip(*parts, strict=True)
    return Residual(torch.cat(content), torch.cat(row_bytes), sum(checks) & 0xFFFF)


def _encode(weight_NK: Tensor, codes: Tensor, scales: Tensor, group_size: int) -> tuple[Tensor, Tensor, int]:
    """In 16 bits that wrap, as decoding does."""
    known, is_zero = _known(codes, scales, weight_NK.shape[1], group_size)
    patterns = weight_NK.view(torch.int16)
    above, below = patterns - known, known - (patterns & 0x7FFF)
    fits = torch.where(is_zero, (below >= 0) & (below <= 127), (above >= -127) & (above <= 127))
    kept = torch.where(is_zero, below | patterns >> 8 & 0x80, above & 0xFF)
    listed = ~fits | (kept == _LISTED)
    kept = torch.where(listed, _LISTED, kept).to(torch.uint8)
    numbers = 2 * listed.sum(1)
    of_rows = patterns[listed].view(torch.uint8).split_with_sizes(numbers.tolist())
    content = torch.cat([part for row in zip(kept, of_rows, strict=True) for part in row])
    return content, weight_NK.shape[1] + numbers, int(patterns.sum())


def decode_into(out_NK: Tensor, residual: Tensor, codes: Tensor, scales: Tensor, group_size: int) -> Decoded:
    """Fills bf16 `out_NK`, contiguous, from a uint8 `residual` that may go on behind what is the matrix's. On the
    calling thread alone, without the interpreter lock.

    Raises ValueError where it ends before the matrix is whole; what is wrong inside shows in `check` only.
    """
    if not (out_NK.is_contiguous() and residual.is_contiguous()):
        raise ValueError("decode_into: matrices lie in rows without gaps")
    assert scales.is_contiguous()
    assert codes.stride(1) == 1
    lib = native.library()
    if lib is None:
        return decode_ref(out_NK, residual, codes, scales, group_size)
    used = (ctypes.c_int64 * 2)()
    code = lib.released.smoe_residual(
        1,
        residual.data_ptr(),
        residual.numel(),
        codes.data_ptr(),
        codes.stride(0),
        scales.data_ptr(),
        *out_NK.shape,
        group_size,
        out_NK.data_ptr(),
        ctypes.addressof(used),
    )
    if code:
        native.fail(code)
    return Decoded(used[0], used[1])


def decode_ref(out_NK: Tensor, residual: Tensor, codes: Tensor, scales: Tensor, group_size: int) -> Decoded:
    """The torch twin of decode_into."""
    rows, columns = out_NK.shape
    known, is_zero = _known(codes, scales, columns, group_size)
    residual = residual.clone()
    patterns, at = torch.empty(rows, columns, dtype=torch.int16), 0
    for row in range(rows):
        kept = residual[at : at + columns]
        listed = (kept == _LISTED).nonzero().squeeze(1)
        ends = at + columns + 2 * len(listed)
        if ends > len(residual):
            native.fail(-4)
        signed = kept.view(torch.int8).to(torch.int16)
        small = known[row] - (signed & 0x7F) | signed & -0x8000
        patterns[row] = torch.where(is_zero[row], small, known[row] + signed)
        patterns[row, listed] = residual[at + columns : ends].clone().view(torch.int16)
        at = ends
    out_NK.view(torch.int16).copy_(patterns)
    return Decoded(at, int(patterns.sum()) & 0xFFFF)


def _known(codes: Tensor, scales: Tensor, columns: int, group_size: int) -> tuple[Tensor, Tensor]:
    """(patterns that the codes stand for, i16; which codes are 0), [N, K] each."""
    halves = codes.view(len(codes), -1, 1, BLOCK // 2)
    q = torch.cat((halves & 15, halves >> 4), 2).flatten(1)[:, :columns].float() - 8
    is_zero = q == 0
    products = torch.where(is_zero, 0.5, q) * scales.float().repeat_interleave(group_size, 1)[:, :columns]
    patterns = (products.view(torch.int32) >> 16).to(torch.int16)
    return torch.where(is_zero, patterns & 0x7FFF, patterns), is_zero
