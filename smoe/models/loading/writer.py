"""Safetensors shards written piece by piece, for checkpoints that do not fit into memory."""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch

from smoe.models.loading.dtypes import SAFETENSORS_DTYPES
from smoe.models.loading.shards import INDEX_NAME

_DTYPE_NAMES = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor to be written; `pieces` yields it in row-major order, in blocks of any shape and in `dtype`."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: Callable[[], Iterable[torch.Tensor]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_shards(
    folder: Path,
    tensors: list[PlannedTensor],
    *,
    shard_bytes: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Writes model-xxxxx-of-xxxxx.safetensors of about `shard_bytes` each, and their index.

    `on_progress(bytes_written, bytes_total)` is called after each tensor. Memory: one piece.
    """
    shards = _cut(tensors, shard_bytes)
    total, written = sum(tensor.nbytes for tensor in tensors), 0
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        with open(folder / name, "wb") as file:
            file.write(safetensors_header(shard, {"format": "pt"}))
            for tensor in shard:
                nbytes = sum(file.write(tensor_bytes(piece, tensor)) for piece in tensor.pieces())
                assert nbytes == tensor.nbytes, f"{tensor.name}: {nbytes} bytes for shape {tensor.shape}"
                weight_map[tensor.name] = name
                written += nbytes
                if on_progress:
                    on_progress(written, total)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_NAME).write_text(json.dumps(index, indent=2), encoding="utf-8")


def _cut(tensors: list[PlannedTensor], shard_bytes: int) -> list[list[PlannedTensor]]:
    shards: list[list[PlannedTensor]] = []
    room = 0
    for tensor in tensors:
        if not shards or tensor.nbytes > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(tensor)
        room -= tensor.nbytes
    return shards


def safetensors_header(tensors: list[PlannedTensor], metadata: Mapping[str, str], *, nbytes: int = 0) -> bytes:
    """What comes before the tensors' bytes; `nbytes` in all, or more if that does not do."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for tensor in tensors:
        span = [offset, offset + tensor.nbytes]
        entries[tensor.name] = {"dtype": _DTYPE_NAMES[tensor.dtype], "shape": tensor.shape, "data_offsets": span}
        offset += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    # Readers map the file, so the data starts on an aligned byte.
    text += b" " * (max(nbytes - len(text) - 8, 0) or -(len(text) + 8) % 64)
    return len(text).to_bytes(8, "little") + text


@contextmanager
def whole_file(path: Path, need_bytes: int) -> Iterator[BinaryIO]:
    """A file to be written, which appears as `path` when the block ends well, and not at all otherwise.

    Raises OSError, also if the disk has less than `need_bytes` free before anything is written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if need_bytes > free:
        raise OSError(f"{need_bytes} bytes are needed on that disk, {free} are free")
    partial_path = path.with_suffix(f".{os.getpid()}")
    try:
        with open(partial_path, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial_path.replace(path)
    finally:
        partial_path.unlink(missing_ok=True)


def tensor_bytes(piece: torch.Tensor, tensor: PlannedTensor) -> memoryview:
    """Of a contiguous copy or view, as they go into the file."""
    assert piece.dtype is tensor.dtype, f"{tensor.name}: a piece is {piece.dtype}"
    return piece.contiguous().view(-1).view(torch.uint8).numpy().data
