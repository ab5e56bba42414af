"""Which dtype a loaded tensor is held in: the one place that decides it."""

import torch

from smoe.core.errors import ConfigError

SAFETENSORS_DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
WEIGHT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
COMPUTE_DTYPES = (torch.float32, torch.bfloat16)


def storage_dtype(
    stored: torch.dtype, compute: torch.dtype, *, matrix: bool, keep_float32: bool = False
) -> torch.dtype:
    """The dtype to hold a tensor of the checkpoint's `stored` dtype in, for arithmetic in `compute`.

    bf16 matrices stay bf16 in fp32 arithmetic too: the kernels widen each value as they read it, so nothing is lost
    and half the bytes are moved. fp16 has no kernels and is widened to fp32, which is exact. fp32 and fp16 are
    rounded when the arithmetic is bf16. What is not a matrix is small and takes the compute dtype.
    """
    if keep_float32:
        return torch.float32
    if matrix and stored is torch.bfloat16:
        return torch.bfloat16
    return compute


def check_compute_dtype(dtype: torch.dtype) -> None:
    if dtype not in COMPUTE_DTYPES:
        raise ConfigError("dtype", str(dtype).removeprefix("torch."), "float32 or bfloat16")
