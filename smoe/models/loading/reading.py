"""Tensors from byte ranges by plain buffered reads, in pieces, so that nothing but the destination grows."""

import os
from collections.abc import Sequence

import numpy as np
import torch

from smoe.core.errors import CheckpointError
from smoe.models.loading.expert_source import TensorRange

_CHUNK_BYTES = 1 << 20
_EXPONENT_BITS = {torch.bfloat16: 0x7F80, torch.float16: 0x7C00, torch.float32: 0x7F800000}
_BITS = {2: np.uint16, 4: np.uint32}


def read_into(source: TensorRange, out: torch.Tensor) -> None:
    """Fills `out` (contiguous, CPU, as many values as `source`), converting to its dtype.

    Raises CheckpointError for a short file or a value that is not finite.
    """
    flat = out.view(-1)
    step = _CHUNK_BYTES // source.dtype.itemsize
    direct = flat.dtype is source.dtype
    scratch = flat if direct else torch.empty(min(step, flat.numel()), dtype=source.dtype)
    try:
        fd = os.open(source.path, os.O_RDONLY)
    except OSError as error:
        raise CheckpointError(f"{source.path}: {error.strerror}") from error
    try:
        for first in range(0, flat.numel(), step):
            target = flat[first : first + step]
            piece = target if direct else scratch[: target.numel()]
            read_bytes(fd, source, source.offset + first * source.dtype.itemsize, piece)
            check_finite(source, piece)
            if not direct:
                target.copy_(piece)
    finally:
        os.close(fd)


def read_columns(source: TensorRange, ranges: Sequence[tuple[int, int]], dtype: torch.dtype) -> torch.Tensor:
    """[rows, columns of `ranges`] of a matrix, row by row, in `dtype`. Raises CheckpointError as read_into does."""
    rows, stride = source.shape[0], source.nbytes // source.shape[0]
    raw = torch.empty((rows, sum(stop - start for start, stop in ranges)), dtype=source.dtype)
    try:
        fd = os.open(source.path, os.O_RDONLY)
    except OSError as error:
        raise CheckpointError(f"{source.path}: {error.strerror}") from error
    try:
        first = 0
        for start, stop in ranges:
            offset = source.offset + start * source.dtype.itemsize
            for row in range(rows):
                read_bytes(fd, source, offset + row * stride, raw[row, first : first + stop - start])
            first += stop - start
    finally:
        os.close(fd)
    check_finite(source, raw)
    return raw.to(dtype)


def read_bytes(fd: int, source: TensorRange, offset: int, out: torch.Tensor) -> None:
    """Fills contiguous `out` from `offset` of the open file."""
    view = out.view(-1).view(torch.uint8).numpy().data
    while view:
        count = os.preadv(fd, [view], offset)
        if not count:
            raise CheckpointError(f"{source.where} ends early, at byte {offset} (truncated)")
        view, offset = view[count:], offset + count


def check_finite(source: TensorRange, values: torch.Tensor) -> None:
    """Raises CheckpointError if any value is NaN or infinite; integers pass."""
    mask = _EXPONENT_BITS.get(values.dtype)
    if mask is not None and values.numel():
        # numpy, not torch: a parallel region for each small piece costs more than the check on a busy machine.
        bits = values.view(-1).view(torch.uint8).numpy().view(_BITS[values.dtype.itemsize])
        if (bits & bits.dtype.type(mask)).max() == mask:
            raise CheckpointError(f"{source.where} holds values that are not finite")
