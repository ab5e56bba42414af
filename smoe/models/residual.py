"""A model's routed experts as what their 4-bit copy does not know of them: one piece of bytes an expert.

It holds the matrices and biases in the order of ExpertSource.shapes: a matrix as smoe.kernels.residual has it, a bias
as it is. An expert is rebuilt over its own piece: `room` says how much memory that takes, and the piece ends where that
memory ends. An expert that gains nothing, or could not be rebuilt so, is kept as it is, in whole.
"""

import ctypes
import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

from smoe.core.errors import ConfigError
from smoe.core.pages import PAGE_BYTES, whole_pages
from smoe.kernels import ExpertTensors, Int4Tensors
from smoe.kernels.residual import MARGIN, Decoded, decode_into, encode
from smoe.models.loading import Checkpoint, ExpertSource
from smoe.models.loading.arena import carve

MATRICES = ("gate", "up", "down")
Shapes = Mapping[str, tuple[int, ...]]


class Piece(NamedTuple):
    """`content` uint8; it is the expert itself if it is `whole`. `check`: sum of its 16-bit patterns modulo 2^16."""

    content: torch.Tensor
    check: int
    whole: bool


def check_dtypes(checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    """Raises ConfigError unless every expert is kept in bf16, on disk and in memory; reads nothing."""
    spec = checkpoint.spec
    for layer in spec.moe_layers:
        source = checkpoint.expert_source(layer, 0)
        stored = {part.dtype for part in source.parts.values()} | {source.weight_dtype(dtype)}
        if stored != {torch.bfloat16}:
            names = ", ".join(sorted(str(each).removeprefix("torch.") for each in stored))
            raise ConfigError("draft_residual", True, f"only with experts in bfloat16, on disk and in memory: {names}")


def room(source: ExpertSource) -> int:
    """Memory that rebuilding this expert takes, in whole pages; it lies at its beginning afterwards."""
    shapes = source.shapes()
    columns = max(shapes[name][-1] for name in MATRICES)
    return whole_pages(_nbytes(shapes) + PAGE_BYTES - 1 + columns + MARGIN)


def pack_expert(expert: ExpertTensors, copy: Int4Tensors, shapes: Shapes, group_size: int) -> Piece:
    """`expert` in bf16 and its 4-bit `copy`."""
    contents, of_rows, to_rows, check = [], [], [], 0
    for name, shape in shapes.items():
        tensor = getattr(expert, name)
        if name in MATRICES:
            found = encode(tensor, getattr(copy, name), getattr(copy, f"{name}_scales"), group_size)
            contents.append(found.content)
            of_rows.append(found.row_bytes)
            to_rows.append(torch.full((shape[0],), 2 * shape[1]))
            check += found.check
        else:
            contents.append(tensor.contiguous().view(-1).view(torch.uint8))
            of_rows.append(torch.tensor([contents[-1].numel()]))
            to_rows.append(of_rows[-1])
            check += _sum(tensor)
    # From every row on, no more is read than written: then what is written never reaches what is still to be read.
    ahead = (torch.cat(to_rows) - torch.cat(of_rows)).flip(0).cumsum(0)
    if int(ahead.min()) >= 0 and int(ahead[-1]) > 0:
        return Piece(torch.cat(contents), check & 0xFFFF, False)
    raw = [getattr(expert, name).contiguous().view(-1).view(torch.uint8) for name in shapes]
    return Piece(torch.cat(raw), check & 0xFFFF, True)


def unpack_expert(
    memory: torch.Tensor, piece: Piece, source: ExpertSource, dtype: torch.dtype, copy: Int4Tensors, group_size: int
) -> None:
    """Rebuilds the expert at the beginning of uint8 `memory` [room], at whose end, but for less than a page, is the
    piece's content.

    Raises ValueError if what comes out is not what went in.
    """
    out, at, end = carve(memory, source, dtype), piece.content.data_ptr(), piece.content.numel()
    done, check = 0, 0
    for name in source.shapes():
        tensor = getattr(out, name)
        if name in MATRICES and not piece.whole:
            rest = piece.content[done:]
            found = decode_into(tensor, rest, getattr(copy, name), getattr(copy, f"{name}_scales"), group_size)
        else:
            if tensor.nbytes > end - done:
                raise ValueError(f"it ends before its {name} is whole")
            ctypes.memmove(tensor.data_ptr(), at + done, tensor.nbytes)
            found = Decoded(tensor.nbytes, _sum(tensor))
        done, check = done + found.nbytes, check + found.check
    if done != end:
        raise ValueError(f"{end} bytes instead of {done}")
    if check & 0xFFFF != piece.check:
        raise ValueError("the expert is another than was kept")


def _nbytes(shapes: Shapes) -> int:
    return 2 * sum(math.prod(shape) for shape in shapes.values())


def _sum(tensor: torch.Tensor) -> int:
    return int(tensor.contiguous().view(torch.int16).sum()) & 0xFFFF
