"""MXFP4 weights of GPT-OSS: four-bit values in blocks of 32 that share a power-of-two scale."""

import torch

# E2M1: sign, two exponent bits, one mantissa bit; the index is the code.
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_SCALE_BIAS = 127


def dequantize_rows(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Rows [R, 32 * G] bf16 from `blocks` [R, G, 16] u8 (low nibble first) and `scales` [R, G] u8; exact in bf16."""
    table = torch.tensor(_VALUES, dtype=torch.float32)
    codes = torch.stack((blocks & 0x0F, blocks >> 4), dim=-1).flatten(-2).to(torch.int32)
    exponents = scales.to(torch.int32).sub_(_SCALE_BIAS).unsqueeze(-1)
    return torch.ldexp(table[codes], exponents).to(torch.bfloat16).flatten(-2)
