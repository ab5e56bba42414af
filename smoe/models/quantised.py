"""A model's routed experts in 4 bits: what they take before anything is read, and their making expert by expert."""

import math
from collections.abc import Callable, Iterator

import torch

from smoe.core.draft import GROUP_SIZES
from smoe.core.errors import ConfigError
from smoe.kernels import ExpertTensors, Int4Tensors, alloc_huge
from smoe.kernels.int4 import expert_shapes, quantise_expert
from smoe.models.spec import DecoderSpec

Shapes = dict[str, tuple[torch.dtype, tuple[int, ...]]]
_ALIGNMENT = 64


def layer_shapes(spec: DecoderSpec, layer: int, group_size: int) -> Shapes:
    """Of the fields of Int4Tensors that this layer's experts have, with a leading axis E.

    Raises ConfigError for a group size that there is none of; groups need not divide any size.
    """
    if group_size not in GROUP_SIZES:
        raise ConfigError("draft_group_size", group_size, f"one of {', '.join(map(str, GROUP_SIZES))}")
    moe = spec.moe(layer)
    return {
        name: (dtype, (moe.router.num_experts, *shape))
        for name, (dtype, shape) in expert_shapes(spec.hidden, moe.ffn, group_size).items()
        if moe.expert_bias or not name.endswith("_bias")
    }


def int4_nbytes(spec: DecoderSpec, group_size: int) -> int:
    """Memory of all routed experts in 4 bits: codes, scales and biases. Raises ConfigError as `layer_shapes` does."""
    return sum(
        math.prod(shape) * dtype.itemsize
        for layer in spec.moe_layers
        for dtype, shape in layer_shapes(spec, layer, group_size).values()
    )


def empty_layer(shapes: Shapes) -> Int4Tensors:
    """Zeroed, in one piece of memory."""
    sizes = [-(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT for dtype, shape in shapes.values()]
    memory, offset = alloc_huge(sum(sizes)), 0
    fields = {}
    for (name, (dtype, shape)), size in zip(shapes.items(), sizes, strict=True):
        nbytes = math.prod(shape) * dtype.itemsize
        fields[name] = memory[offset : offset + nbytes].view(dtype).view(shape)
        offset += size
    return Int4Tensors(**fields)


def expert_of(layer: Int4Tensors, expert: int) -> Int4Tensors:
    """Views of one expert."""
    return Int4Tensors(*(None if part is None else part[expert] for part in layer))  # type: ignore[arg-type]


def quantise_layers(
    spec: DecoderSpec, group_size: int, read: Callable[[int, int], ExpertTensors], *, search: bool = True
) -> Iterator[tuple[int, Int4Tensors]]:
    """(layer, its experts) one after another. `read(layer, expert)` is called once for each; of what it gives, one
    expert is in memory at a time. Raises what `read` does."""
    for layer in spec.moe_layers:
        out = empty_layer(layer_shapes(spec, layer, group_size))
        for expert in range(spec.moe(layer).router.num_experts):
            packed = quantise_expert(read(layer, expert), group_size, search=search)
            for part, target in zip(packed, expert_of(out, expert), strict=True):
                if part is not None and target is not None:
                    target.copy_(part)
        yield layer, out
