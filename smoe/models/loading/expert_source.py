"""Byte ranges of tensors on disk, and how one expert's bytes become its matrices.

Everything here is plain picklable data: a store may send it to a thread, a process or an actor, read the ranges
with any kind of I/O, in any order, into any memory, and call `assemble` on the bytes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from smoe.kernels import ExpertTensors
from smoe.models.loading.dtypes import storage_dtype
from smoe.models.loading.mxfp4 import dequantize_rows


@dataclass(frozen=True, slots=True)
class TensorRange:
    """`nbytes` bytes at `offset` of `path` are a contiguous row-major tensor; `name` is for messages."""

    path: str
    offset: int
    nbytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    name: str = ""

    @property
    def where(self) -> str:
        return f"{self.path}: tensor {self.name}"

    def item(self, index: int) -> "TensorRange":
        """The sub-tensor at `index` of the leading axis."""
        step = self.nbytes // self.shape[0]
        return replace(self, offset=self.offset + index * step, nbytes=step, shape=self.shape[1:])

    def rows(self, start: int, stop: int) -> "TensorRange":
        """Rows [start, stop) of the leading axis."""
        step = self.nbytes // self.shape[0]
        shape = (stop - start, *self.shape[1:])
        return replace(self, offset=self.offset + start * step, nbytes=(stop - start) * step, shape=shape)


ExpertLayout = Literal["rows", "gptoss", "mxfp4"]


@dataclass(frozen=True, slots=True)
class ExpertSource:
    """Where one expert's weights are on disk.

    rows: parts are fields of ExpertTensors: gate, up [F, D], down [D, F], and biases if the family has them.
    gptoss: gate_up [D, 2F] with gate and up columns interleaved, down [F, D], gate_up_bias [2F], down_bias [D].
    mxfp4: gate_up_blocks [2F, D/32, 16] and gate_up_scales [2F, D/32] with gate and up rows interleaved,
    down_blocks [D, F/32, 16], down_scales [D, F/32], and the biases of gptoss.
    """

    layer: int
    expert: int
    layout: ExpertLayout
    parts: Mapping[str, TensorRange]

    @property
    def nbytes(self) -> int:
        """Bytes to read from disk."""
        return sum(part.nbytes for part in self.parts.values())

    def weight_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype that `assemble` gives for arithmetic in `dtype`; one for all matrices and biases of the expert."""
        if self.layout == "mxfp4":
            return storage_dtype(torch.bfloat16, dtype, matrix=True)
        stored = {part.dtype for part in self.parts.values()}
        return storage_dtype(stored.pop(), dtype, matrix=True) if len(stored) == 1 else dtype

    def converts(self, dtype: torch.dtype) -> bool:
        """Whether `assemble` makes new tensors; otherwise its result is a view of the bytes handed to it."""
        target = self.weight_dtype(dtype)
        return self.layout != "rows" or any(part.dtype is not target for part in self.parts.values())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each ExpertTensors field that `assemble` fills."""
        if self.layout == "rows":
            return {key: part.shape for key, part in self.parts.items()}
        hidden, twice_ffn = self.parts["down_bias"].shape[0], self.parts["gate_up_bias"].shape[0]
        ffn = twice_ffn // 2
        shapes: dict[str, tuple[int, ...]] = {"gate": (ffn, hidden), "up": (ffn, hidden), "down": (hidden, ffn)}
        return shapes | {"gate_bias": (ffn,), "up_bias": (ffn,), "down_bias": (hidden,)}

    def assembled_nbytes(self, dtype: torch.dtype) -> int:
        """Bytes of the tensors that `assemble` gives."""
        itemsize = self.weight_dtype(dtype).itemsize
        return sum(math.prod(shape) for shape in self.shapes().values()) * itemsize

    def assemble(self, parts: Mapping[str, torch.Tensor], dtype: torch.dtype) -> ExpertTensors:
        """ExpertTensors from the raw uint8 bytes of each part, for arithmetic in `dtype`.

        Views of `parts` unless `converts(dtype)`; a piece that is not aligned to its item size is copied.
        """
        target = self.weight_dtype(dtype)
        typed = {key: _typed(parts[key], part) for key, part in self.parts.items()}
        if self.layout == "mxfp4":
            for key in ("gate_up", "down"):
                typed[key] = dequantize_rows(typed.pop(f"{key}_blocks"), typed.pop(f"{key}_scales"))
        elif self.layout == "gptoss":
            typed["gate_up"], typed["down"] = typed["gate_up"].T, typed["down"].T
        if self.layout != "rows":
            for key in ("gate_up", "gate_up_bias"):
                both = typed.pop(key)
                suffix = key.removeprefix("gate_up")
                typed[f"gate{suffix}"], typed[f"up{suffix}"] = both[0::2], both[1::2]
        return ExpertTensors(**{key: tensor.to(target).contiguous() for key, tensor in typed.items()})


def _typed(raw: torch.Tensor, part: TensorRange) -> torch.Tensor:
    size = part.dtype.itemsize
    if raw.storage_offset() % size or raw.data_ptr() % size:
        raw = raw.clone()
    return raw.view(part.dtype).view(part.shape)
