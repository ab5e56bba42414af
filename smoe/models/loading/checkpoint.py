"""A checked model folder: its geometry, where each tensor is, and readers that stream weights out of it."""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from smoe.kernels import ExpertTensors, alloc_huge
from smoe.models.checkpoint import CheckpointMap, Cut, Family
from smoe.models.loading.arena import carve, read_source_into
from smoe.models.loading.config import model_folder, read_config
from smoe.models.loading.dtypes import check_compute_dtype
from smoe.models.loading.expert_source import ExpertSource, TensorRange
from smoe.models.loading.experts import locate_experts
from smoe.models.loading.leftovers import check_leftovers, check_tied_head
from smoe.models.loading.params import cut_nbytes, locate_param, read_param
from smoe.models.loading.shards import find_tensors
from smoe.models.spec import DecoderSpec

_SAMPLED_TENSORS, _SAMPLED_BYTES = 64, 256
Part = Callable[[str], Cut | None]
"""Of a parameter by name, what to read; None: all. A cut of no ranges: nothing, it is left out."""


class Checkpoint:
    """Made by `open_checkpoint`; holds no weights and no open file."""

    def __init__(
        self, folder: Path, config: Any, family: Family, spec: DecoderSpec, tensors: Mapping[str, TensorRange]
    ) -> None:
        """Raises CheckpointError if `tensors` are not exactly what the family asks for."""
        self.folder, self.config, self.family, self.spec, self.tensors = folder, config, family, spec, tensors
        self._map: CheckpointMap = family.checkpoint_map(spec)
        self._params = {name: locate_param(tensors, param) for name, param in self._map.params.items()}
        used = {source.name for sources in self._params.values() for source in sources}
        self._experts: dict[int, list[ExpertSource]] = {}
        for layer, names in self._map.experts.items():
            self._experts[layer], names_used = locate_experts(tensors, layer, names, spec.moe(layer), spec.hidden)
            used |= names_used
        check_leftovers(spec, self._map, tensors, used)
        self.fingerprint = self._fingerprint()

    def params(
        self, *, dtype: torch.dtype, device: str | torch.device = "cpu", part: Part | None = None
    ) -> dict[str, torch.Tensor]:
        """Everything but the routed experts, for arithmetic in `dtype`; storage dtypes as `storage_dtype` says.

        `part` says how much of each; the rest is not read. Raises CheckpointError naming a tensor that is truncated or
        not finite.
        """
        check_compute_dtype(dtype)
        check_tied_head(self.spec, self._map, self.tensors)
        kept: dict[str, torch.Tensor] = {}
        for name, sources in self._params.items():
            cut = None if part is None else part(name)
            if cut is None or cut.ranges:
                kept[name] = read_param(sources, self._map.params[name], dtype, cut).to(device)
        return kept

    def params_nbytes(self, *, dtype: torch.dtype, part: Part | None = None) -> int:
        """What `params` will take, without reading anything; parameters that are reshaped keep their size."""
        return sum(self.param_nbytes(dtype=dtype, part=part).values())

    def param_nbytes(self, *, dtype: torch.dtype, part: Part | None = None) -> dict[str, int]:
        """`params_nbytes` by parameter; 0 for one that is left out."""
        return {
            name: cut_nbytes(sources, self._map.params[name], dtype, None if part is None else part(name))
            for name, sources in self._params.items()
        }

    def expert_source(self, layer: int, expert: int) -> ExpertSource:
        return self._experts[layer][expert]

    def read_expert(self, layer: int, expert: int, *, dtype: torch.dtype) -> ExpertTensors:
        """One expert in memory of its own. Raises CheckpointError as `params` does."""
        check_compute_dtype(dtype)
        source = self.expert_source(layer, expert)
        out = carve(torch.empty(source.assembled_nbytes(dtype), dtype=torch.uint8), source, dtype)
        read_source_into(source, dtype, out)
        return out

    def read_layer(self, layer: int, *, dtype: torch.dtype) -> list[ExpertTensors]:
        """All experts of a layer, by expert id, as views of one huge-page backed arena."""
        check_compute_dtype(dtype)
        sources = self._experts[layer]
        strides = [_aligned(source.assembled_nbytes(dtype)) for source in sources]
        experts: list[ExpertTensors] = []
        arena, offset = alloc_huge(sum(strides)), 0
        for source, stride in zip(sources, strides, strict=True):
            out = carve(arena.narrow(0, offset, stride), source, dtype)
            read_source_into(source, dtype, out)
            experts.append(out)
            offset += stride
        return experts

    def _fingerprint(self) -> str:
        """16 hex digits of geometry, tensor names, dtypes, shapes and a sample of the content.

        The same for the same weights however they are cut into files.
        """
        spec, digest = self.spec, hashlib.sha256()
        moe = [(i, spec.moe(i).router.num_experts, spec.moe(i).router.top_k, spec.moe(i).ffn) for i in spec.moe_layers]
        digest.update(repr((spec.family, spec.hidden, spec.vocab, len(spec.layers), moe)).encode())
        names = sorted(self.tensors)
        for name in names:
            tensor = self.tensors[name]
            digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        for name in names[:: max(1, len(names) // _SAMPLED_TENSORS)]:
            tensor = self.tensors[name]
            with open(tensor.path, "rb", buffering=0) as file:
                digest.update(os.pread(file.fileno(), min(_SAMPLED_BYTES, tensor.nbytes), tensor.offset))
        return digest.hexdigest()[:16]


def open_checkpoint(folder: str | Path) -> Checkpoint:
    """Reads config and headers, and checks that they fit; no weights. `builtin` is the packaged model.

    Raises CheckpointError naming file and tensor or field.
    """
    from smoe.models.families.registry import family_for

    path = model_folder(folder)
    model_type, config = read_config(path)
    family = family_for(model_type)
    spec = family.parse(config)
    return Checkpoint(path, config, family, spec, find_tensors(path))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 64) * 64
