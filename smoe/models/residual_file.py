"""Experts as residuals, kept on disk: a safetensors file a model and group size, beside that of the 4-bit copy.

A piece an expert (see smoe.models.residual), on whole pages so that a direct read brings it in, and an `index` with a
row an expert: bytes of the piece, its check, whether it is the expert in whole. The metadata names the model, the group
size, the version of the form and the very 4-bit copy: with another copy the pieces would rebuild other weights.
Deleting the file is harmless.
"""

import hashlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from smoe.core.errors import CheckpointError, StoreError
from smoe.core.pages import PAGE_BYTES, whole_pages
from smoe.kernels import Int4Tensors
from smoe.kernels.residual import FORMAT_VERSION
from smoe.models.loading import Checkpoint, TensorRange
from smoe.models.loading.headers import read_header
from smoe.models.loading.reading import read_into
from smoe.models.loading.writer import PlannedTensor, safetensors_header, tensor_bytes, whole_file
from smoe.models.quantised import expert_of
from smoe.models.quantised_file import cache_file, check_identity
from smoe.models.residual import pack_expert

log = logging.getLogger(__name__)

Key = tuple[int, int]
INDEX = "index"
SAY_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class KeptPiece:
    """`nbytes` bytes of the file, from a page's beginning on; `check` and `whole` as in Piece."""

    offset: int
    nbytes: int
    check: int
    whole: bool


@dataclass(frozen=True, slots=True)
class ResidualFile:
    """`pieces` by (layer, expert); `copy` is the 4-bit copy that they belong to."""

    path: Path
    group_size: int
    copy: Mapping[int, Int4Tensors]
    pieces: Mapping[Key, KeptPiece]


def load_residuals(
    checkpoint: Checkpoint, copy: Mapping[int, Int4Tensors], group_size: int, *, folder: Path | None = None
) -> ResidualFile:
    """The file in `folder` (by default the cache), made from the checkpoint unless it is there and right.

    Raises CheckpointError for a checkpoint that cannot be read, StoreError if the file cannot be written.
    """
    path = residual_path(checkpoint, group_size, folder)
    identity = _identity(checkpoint, copy, group_size)
    try:
        if path.exists():
            return ResidualFile(path, group_size, copy, read_pieces(path, checkpoint, identity))
    except CheckpointError as error:
        log.warning("%s; it is made again", error)
    try:
        write_residuals(path, checkpoint, copy, group_size, identity)
    except OSError as error:
        raise StoreError(f"{path}: cannot keep the residuals of experts: {error.strerror or error}") from error
    return ResidualFile(path, group_size, copy, read_pieces(path, checkpoint, identity))


def residual_path(checkpoint: Checkpoint, group_size: int, folder: Path | None = None) -> Path:
    return cache_file(checkpoint, group_size, folder).with_suffix(".residual.safetensors")


def write_residuals(
    path: Path,
    checkpoint: Checkpoint,
    copy: Mapping[int, Int4Tensors],
    group_size: int,
    identity: Mapping[str, str],
) -> None:
    """Holds one expert in memory at a time. The file appears when it is whole. Raises OSError."""
    keys = _keys(checkpoint)
    sizes = {key: checkpoint.expert_source(*key).assembled_nbytes(torch.bfloat16) for key in keys}
    # The header comes first and says how long all pieces are, which is known last: room for the longest that it can be.
    head = whole_pages(len(safetensors_header(_planned({key: whole_pages(n) for key, n in sizes.items()}), identity)))
    rows, lengths = [], {}
    with whole_file(path, head + sum(sizes.values()) // 2) as file:
        file.seek(head)
        began = said = time.monotonic()
        log.warning("%s: is made, once: what the 4-bit copy does not know of %d experts", path, len(keys))
        for number, key in enumerate(keys):
            if time.monotonic() - said >= SAY_EVERY_S:
                said = time.monotonic()
                left_s = (said - began) * (len(keys) - number) / number if number else 0.0
                log.warning("%s: %d of %d experts, about %.0f s to go", path, number, len(keys), left_s)
            expert = checkpoint.read_expert(*key, dtype=torch.bfloat16)
            shapes = checkpoint.expert_source(*key).shapes()
            piece = pack_expert(expert, expert_of(copy[key[0]], key[1]), shapes, group_size)
            nbytes = piece.content.numel()
            lengths[key] = whole_pages(nbytes)
            file.write(piece.content.numpy().data)
            file.write(bytes(lengths[key] - nbytes))
            rows.append((nbytes, piece.check, int(piece.whole)))
        tensors = _planned(lengths)
        file.write(tensor_bytes(torch.tensor(rows), tensors[-1]))
        file.seek(0)
        file.write(safetensors_header(tensors, identity, nbytes=head))


def read_pieces(path: Path, checkpoint: Checkpoint, identity: Mapping[str, str]) -> dict[Key, KeptPiece]:
    """Raises CheckpointError if the file is not whole, or not of this model and copy. Pieces are not looked into: that
    one is not what it was shows when it is read."""
    found = read_header(path)
    check_identity(path, identity)
    keys = _keys(checkpoint)
    names = {_name(key): key for key in keys} | {INDEX: None}
    if names.keys() != found.keys():
        name = min(names.keys() ^ found.keys())
        raise CheckpointError(f"{path}: tensor {name} is {'missing' if name in names else 'not of this model'}")
    if (found[INDEX].dtype, found[INDEX].shape) != (torch.int64, (len(keys), 3)):
        raise CheckpointError(f"{found[INDEX].where} is {found[INDEX].dtype} {list(found[INDEX].shape)}")
    index = torch.empty(len(keys), 3, dtype=torch.int64)
    read_into(found[INDEX], index)
    pieces = {}
    for key, (nbytes, check, whole) in zip(keys, index.tolist(), strict=True):
        where, size = found[_name(key)], checkpoint.expert_source(*key).assembled_nbytes(torch.bfloat16)
        if not _fits(where, nbytes, size, whole):
            raise CheckpointError(f"{where.where} has {where.nbytes} bytes at {where.offset}, its index says {nbytes}")
        pieces[key] = KeptPiece(where.offset, nbytes, check, bool(whole))
    return pieces


def _fits(where: TensorRange, nbytes: int, size: int, whole: int) -> bool:
    on_pages = where.offset % PAGE_BYTES == 0 and where.nbytes == whole_pages(nbytes)
    return on_pages and where.dtype is torch.uint8 and (nbytes == size if whole else 0 < nbytes < size)


def _identity(checkpoint: Checkpoint, copy: Mapping[int, Int4Tensors], group_size: int) -> dict[str, str]:
    digest = hashlib.sha256()
    for layer in checkpoint.spec.moe_layers:
        for part in copy[layer]:
            if part is not None:
                digest.update(part.contiguous().view(-1).view(torch.uint8).numpy().data)
    return {
        "fingerprint": checkpoint.fingerprint,
        "group_size": str(group_size),
        "version": str(FORMAT_VERSION),
        "copy": digest.hexdigest()[:32],
    }


def _planned(lengths: Mapping[Key, int]) -> list[PlannedTensor]:
    pieces = [PlannedTensor(_name(key), (nbytes,), torch.uint8, list) for key, nbytes in lengths.items()]
    return [*pieces, PlannedTensor(INDEX, (len(lengths), 3), torch.int64, list)]


def _keys(checkpoint: Checkpoint) -> list[Key]:
    spec = checkpoint.spec
    return [(layer, expert) for layer in spec.moe_layers for expert in range(spec.moe(layer).router.num_experts)]


def _name(key: Key) -> str:
    return f"layers.{key[0]}.experts.{key[1]}"
