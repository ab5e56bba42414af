"""Experts in 4 bits kept on disk: a safetensors file a model and group size, under $XDG_CACHE_HOME (~/.cache).

Its metadata names the model, the group size and the version of the form, and its tensors must be exactly those of the
model: a file of another model, cut short or with scales that are not finite is never used. Deleting it is harmless.
"""

import json
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from smoe.core.cache_root import cache_root
from smoe.core.errors import CheckpointError
from smoe.kernels import Int4Tensors
from smoe.kernels.int4 import FORMAT_VERSION
from smoe.models.loading import Checkpoint
from smoe.models.loading.headers import read_header
from smoe.models.loading.reading import read_into
from smoe.models.loading.writer import PlannedTensor, safetensors_header, tensor_bytes, whole_file
from smoe.models.quantised import empty_layer, layer_shapes, quantise_layers

log = logging.getLogger(__name__)


def load_int4(checkpoint: Checkpoint, group_size: int, *, folder: Path | None = None) -> dict[int, Int4Tensors]:
    """Every MoE layer's experts, from the file in `folder` (by default the cache) or else from the checkpoint, and then
    kept there. Not being able to keep them is no error.

    Raises ConfigError for the group size, CheckpointError for a checkpoint that cannot be read.
    """
    path = cache_file(checkpoint, group_size, folder)
    try:
        if path.exists():
            return read_int4(path, checkpoint, group_size)
    except CheckpointError as error:
        log.warning("%s; it is made again", error)
    read = partial(checkpoint.read_expert, dtype=torch.float32)
    layers = dict(quantise_layers(checkpoint.spec, group_size, read))
    try:
        write_int4(path, layers, _identity(checkpoint, group_size))
    except OSError as error:
        log.warning("%s: cannot keep the 4-bit experts: %s", path, error.strerror or error)
    return layers


def cache_file(checkpoint: Checkpoint, group_size: int, folder: Path | None = None) -> Path:
    if folder is None:
        folder = cache_root() / "int4"
    return folder / f"{checkpoint.fingerprint}-g{group_size}-v{FORMAT_VERSION}.safetensors"


def write_int4(path: Path, layers: Mapping[int, Int4Tensors], identity: Mapping[str, str]) -> None:
    """The file appears when it is whole. Raises OSError."""
    tensors = [
        PlannedTensor(_name(layer, field), tuple(part.shape), part.dtype, lambda part=part: [part])  # type: ignore[misc]
        for layer, experts in layers.items()
        for field, part in zip(Int4Tensors._fields, experts, strict=True)
        if part is not None
    ]
    with whole_file(path, sum(tensor.nbytes for tensor in tensors)) as file:
        file.write(safetensors_header(tensors, identity))
        for tensor in tensors:
            for piece in tensor.pieces():
                file.write(tensor_bytes(piece, tensor))


def read_int4(path: Path, checkpoint: Checkpoint, group_size: int) -> dict[int, Int4Tensors]:
    """Raises CheckpointError if the file is not whole, valid and of this model and group size."""
    found, spec = read_header(path), checkpoint.spec
    check_identity(path, _identity(checkpoint, group_size))
    shapes = {layer: layer_shapes(spec, layer, group_size) for layer in spec.moe_layers}
    names = {_name(layer, field): shape for layer, fields in shapes.items() for field, shape in fields.items()}
    if names.keys() != found.keys():
        name = min(names.keys() ^ found.keys())
        raise CheckpointError(f"{path}: tensor {name} is {'missing' if name in names else 'not of this model'}")
    for name, (dtype, shape) in names.items():
        if (found[name].dtype, found[name].shape) != (dtype, shape):
            raise CheckpointError(f"{found[name].where} is {found[name].dtype} {list(found[name].shape)}")
    layers = {}
    for layer, fields in shapes.items():
        layers[layer] = empty_layer(fields)
        for field in fields:
            read_into(found[_name(layer, field)], getattr(layers[layer], field))
    return layers


def _identity(checkpoint: Checkpoint, group_size: int) -> dict[str, str]:
    return {
        "fingerprint": checkpoint.fingerprint,
        "group_size": str(group_size),
        "version": str(FORMAT_VERSION),
    }


def _name(layer: int, field: str) -> str:
    return f"layers.{layer}.experts.{field}"


def check_identity(path: Path, expected: Mapping[str, str]) -> None:
    """That a safetensors file whose header has been checked has this metadata. Raises CheckpointError."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    found = header.get("__metadata__")
    metadata = found if isinstance(found, dict) else {}
    for field, value in expected.items():
        if metadata.get(field) != value:
            raise CheckpointError(f"{path}: {field}: {metadata.get(field)!r} (the model asks for {value!r})")
