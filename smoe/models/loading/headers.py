"""Headers of safetensors files: where each tensor lies, checked against the size of the file."""

import json
import math
import os
from pathlib import Path
from typing import Any

from smoe.core.errors import CheckpointError
from smoe.models.loading.dtypes import SAFETENSORS_DTYPES
from smoe.models.loading.expert_source import TensorRange

_MAX_HEADER_BYTES = 100_000_000


def read_header(path: Path) -> dict[str, TensorRange]:
    """Tensors of one file by name. Raises CheckpointError if the file is not exactly what its header says."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            header_bytes = int.from_bytes(file.read(8), "little")
            if size < 8 or header_bytes > min(size - 8, _MAX_HEADER_BYTES):
                raise CheckpointError(f"{path}: truncated or not a safetensors file ({size} bytes)")
            header = json.loads(file.read(header_bytes), object_pairs_hook=_unique_keys)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: broken safetensors header: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: broken safetensors header: not an object")
    header.pop("__metadata__", None)
    start = 8 + header_bytes
    tensors = {name: _tensor_range(path, name, entry, start) for name, entry in header.items()}
    _check_cover(path, size, start, tensors)
    return tensors


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"tensor {next(n for n in names if names.count(n) > 1)} is listed twice")
    return entries


def _tensor_range(path: Path, name: str, entry: Any, start: int) -> TensorRange:
    try:
        dtype = SAFETENSORS_DTYPES[entry["dtype"]]
        shape = tuple(int(n) for n in entry["shape"])
        begin, end = (int(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: tensor {name} has a broken header entry or unknown dtype: {entry}") from error
    if min((begin, *shape), default=0) < 0 or end - begin != math.prod(shape) * dtype.itemsize:
        raise CheckpointError(f"{path}: tensor {name} of shape {list(shape)} does not fit its {end - begin} bytes")
    return TensorRange(str(path), start + begin, end - begin, dtype, shape, name)


def _check_cover(path: Path, size: int, start: int, tensors: dict[str, TensorRange]) -> None:
    position = start
    for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
        if tensor.offset != position:
            raise CheckpointError(f"{tensor.where} starts at byte {tensor.offset}, where {position} is expected")
        position += tensor.nbytes
        if position > size:
            raise CheckpointError(f"{tensor.where} ends at byte {position}, but the file has {size} (truncated)")
    if position != size:
        raise CheckpointError(f"{path}: has {size} bytes, but its header describes {position}")
