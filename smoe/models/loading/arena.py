"""One expert's tensors laid out in a piece of memory, and read into it."""

import math

import torch

from smoe.kernels import ExpertTensors
from smoe.models.loading.expert_source import ExpertSource
from smoe.models.loading.reading import check_finite, read_into


def carve(memory: torch.Tensor, source: ExpertSource, dtype: torch.dtype) -> ExpertTensors:
    """Uninitialised ExpertTensors one behind the other in uint8 `memory`, which may be longer than they are."""
    target = source.weight_dtype(dtype)
    fields, offset = {}, 0
    for key, shape in source.shapes().items():
        nbytes = math.prod(shape) * target.itemsize
        fields[key] = memory[offset : offset + nbytes].view(target).view(shape)
        offset += nbytes
    return ExpertTensors(**fields)


def read_source_into(source: ExpertSource, dtype: torch.dtype, out: ExpertTensors) -> None:
    """Fills `out`, as carved. Raises CheckpointError naming the tensor that is truncated or not finite."""
    if source.layout == "rows":
        for key, part in source.parts.items():
            read_into(part, getattr(out, key))
        return
    raw = {}
    for key, part in source.parts.items():
        typed = torch.empty(part.shape, dtype=part.dtype)
        read_into(part, typed)
        raw[key] = typed.view(-1).view(torch.uint8)
    assembled = source.assemble(raw, dtype)
    for key in source.shapes():
        tensor = getattr(assembled, key)
        check_finite(next(iter(source.parts.values())), tensor)
        getattr(out, key).copy_(tensor)
