"""MXFP4 weights of GPT-OSS: four-bit values in blocks of 32 that share a power-of-two scale."""

import torch

# E2M1: sign, two exponent bits, one mantissa bit; the index is the code.
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
# The fp32 intermediate is eight times the packed bytes; this many rows at a time keep it at a few MB.
_BLOCK_ROWS = 128


def dequantize_rows(blocks_RG16: torch.Tensor, scales_RG: torch.Tensor) -> torch.Tensor:
    """[R, 32 * G] bf16 from u8 blocks, low nibble first, and u8 scales; exact. A scale of 255 gives NaN or infinity."""
    pairs = torch.tensor([(low, high) for high in _VALUES for low in _VALUES], dtype=torch.float32)
    num_rows, num_groups, num_bytes = blocks_RG16.shape
    out = torch.empty((num_rows, num_groups * num_bytes * 2), dtype=torch.bfloat16)
    for first in range(0, num_rows, _BLOCK_ROWS):
        rows = slice(first, first + _BLOCK_ROWS)
        values = torch.nn.functional.embedding(blocks_RG16[rows].int(), pairs)
        out[rows] = values.mul_(_power_of_two(scales_RG[rows])[:, :, None, None]).flatten(1)
    return out


def _power_of_two(scales: torch.Tensor) -> torch.Tensor:
    """2 ** (scale - 127): the scale is the exponent field of an fp32, save for 2 ** -127, which is subnormal."""
    bits = scales.int() << 23
    bits[scales == 0] = 1 << 22
    return bits.view(torch.float32)
