"""Which file of a model folder holds which tensor."""

import json
import re
from pathlib import Path

from smoe.core.errors import CheckpointError
from smoe.models.loading.expert_source import TensorRange
from smoe.models.loading.headers import read_header

INDEX_NAME = "model.safetensors.index.json"


def find_tensors(folder: Path) -> dict[str, TensorRange]:
    """Every tensor of the checkpoint. With an index, files that it does not name are not looked at."""
    index = folder / INDEX_NAME
    if index.exists():
        return _indexed(folder, index)
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(f"{folder}: no *.safetensors file (other weight formats are not read)")
    _check_numbering(paths)
    return _merge(paths)


def _indexed(folder: Path, index: Path) -> dict[str, TensorRange]:
    weight_map = _weight_map(index)
    for name, shard in weight_map.items():
        if not (folder / shard).is_file():
            raise CheckpointError(f"{index}: tensor {name} is in {shard}, which is missing")
    tensors = _merge([folder / shard for shard in sorted(set(weight_map.values()))])
    for name, shard in weight_map.items():
        if name not in tensors or Path(tensors[name].path).name != shard:
            raise CheckpointError(f"{index}: tensor {name} is not in {shard}")
    for name, tensor in tensors.items():
        if name not in weight_map:
            raise CheckpointError(f"{tensor.where} is not listed in {INDEX_NAME}")
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{index}: broken index: no readable weight_map") from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: broken index: weight_map is empty")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(f"{index}: tensor {name} names {shard!r}, which is not a file of this folder")
    return weight_map


def _merge(paths: list[Path]) -> dict[str, TensorRange]:
    tensors: dict[str, TensorRange] = {}
    for path in paths:
        for name, tensor in read_header(path).items():
            if name in tensors:
                raise CheckpointError(f"{tensor.where} is also in {Path(tensors[name].path).name}")
            tensors[name] = tensor
    if not tensors:
        raise CheckpointError(f"{paths[0]}: holds no tensors")
    return tensors


def _check_numbering(paths: list[Path]) -> None:
    numbered = [m for p in paths if (m := re.fullmatch(r"(.*)-(\d+)-of-(\d+)\.safetensors", p.name))]
    for match in numbered:
        present = {int(m[2]) for m in numbered if m[1] == match[1] and m[3] == match[3]}
        missing = sorted(set(range(1, int(match[3]) + 1)) - present)
        if missing:
            name = f"{match[1]}-{missing[0]:0{len(match[2])}d}-of-{match[3]}.safetensors"
            raise CheckpointError(f"{paths[0].parent / name}: this shard is missing")
