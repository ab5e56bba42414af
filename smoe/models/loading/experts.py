"""From the names of a layer's expert tensors to one ExpertSource an expert, whichever layout the folder has."""

from collections.abc import Mapping
from pathlib import Path

import torch

from smoe.core.errors import CheckpointError
from smoe.models.checkpoint import ExpertNames
from smoe.models.loading.dtypes import WEIGHT_DTYPES
from smoe.models.loading.expert_source import ExpertSource, TensorRange
from smoe.models.spec import MoESpec

Tensors = Mapping[str, TensorRange]


def take(tensors: Tensors, name: str, shape: tuple[int, ...], *, dtypes: tuple[torch.dtype, ...]) -> TensorRange:
    """The named tensor; raises CheckpointError if it is absent, of another shape or not of one of `dtypes`."""
    tensor = tensors.get(name)
    if tensor is None:
        raise CheckpointError(f"{_folder(tensors)}: tensor {name} of shape {list(shape)} is missing")
    if tensor.shape != shape:
        raise CheckpointError(f"{tensor.where} has shape {list(tensor.shape)}, the config asks for {list(shape)}")
    if tensor.dtype not in dtypes:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise CheckpointError(f"{tensor.where} is {str(tensor.dtype).removeprefix('torch.')}, not one of {allowed}")
    return tensor


def locate_experts(
    tensors: Tensors, layer: int, names: ExpertNames, moe: MoESpec, hidden: int
) -> tuple[list[ExpertSource], set[str]]:
    """One source an expert, and the names of the tensors they use."""
    layout = _layout(tensors, layer, names, moe.router.num_experts)
    used: set[str] = set()

    def get(name: str, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...] = WEIGHT_DTYPES) -> TensorRange:
        used.add(name)
        return take(tensors, name, shape, dtypes=dtypes)

    experts = range(moe.router.num_experts)
    num_experts, ffn = moe.router.num_experts, moe.ffn
    if layout == "split":
        shapes = _split_shapes(ffn, hidden)
        per_expert = [
            {key: get(template.format(e=e), shapes[key]) for key, template in (names.split or {}).items()}
            for e in experts
        ]
        return [ExpertSource(layer, e, "rows", per_expert[e]) for e in experts], used
    if layout == "stacked":
        stacked = names.stacked or {}
        gate_up = get(stacked["gate_up"], (num_experts, 2 * ffn, hidden))
        down = get(stacked["down"], (num_experts, hidden, ffn))
        sources = []
        for e in experts:
            both = gate_up.item(e)
            parts = {"gate": both.rows(0, ffn), "up": both.rows(ffn, 2 * ffn), "down": down.item(e)}
            sources.append(ExpertSource(layer, e, "rows", parts))
        return sources, used
    gptoss = names.gptoss or {}
    whole = {
        "gate_up_bias": get(gptoss["gate_up_bias"], (num_experts, 2 * ffn)),
        "down_bias": get(gptoss["down_bias"], (num_experts, hidden)),
    }
    if layout == "gptoss":
        whole["gate_up"] = get(gptoss["gate_up"], (num_experts, hidden, 2 * ffn))
        whole["down"] = get(gptoss["down"], (num_experts, ffn, hidden))
        return [ExpertSource(layer, e, "gptoss", {k: t.item(e) for k, t in whole.items()}) for e in experts], used
    for key, rows, columns in (("gate_up", 2 * ffn, hidden), ("down", hidden, ffn)):
        groups = columns // 32
        whole[f"{key}_blocks"] = get(f"{gptoss[key]}_blocks", (num_experts, rows, groups, 16), (torch.uint8,))
        whole[f"{key}_scales"] = get(f"{gptoss[key]}_scales", (num_experts, rows, groups), (torch.uint8,))
    return [ExpertSource(layer, e, "mxfp4", {k: t.item(e) for k, t in whole.items()}) for e in experts], used


def _split_shapes(ffn: int, hidden: int) -> dict[str, tuple[int, ...]]:
    return {
        "gate": (ffn, hidden),
        "up": (ffn, hidden),
        "down": (hidden, ffn),
        "gate_bias": (ffn,),
        "up_bias": (ffn,),
        "down_bias": (hidden,),
    }


def _layout(tensors: Tensors, layer: int, names: ExpertNames, num_experts: int) -> str:
    split = [t.format(e=e) for t in (names.split or {}).values() for e in range(num_experts)]
    gptoss = names.gptoss or {}
    candidates = {
        "split": split,
        "stacked": list((names.stacked or {}).values()),
        "gptoss": [gptoss[key] for key in ("gate_up", "down") if key in gptoss],
        "mxfp4": [
            f"{gptoss[key]}_{part}" for key in ("gate_up", "down") if key in gptoss for part in ("blocks", "scales")
        ],
    }
    present = {layout: [n for n in listed if n in tensors] for layout, listed in candidates.items()}
    found = [layout for layout, listed in present.items() if listed]
    if len(found) > 1:
        first, second = (tensors[present[layout][0]] for layout in found[:2])
        raise CheckpointError(f"{first.where} and tensor {second.name}: layer {layer} has its experts in two layouts")
    if not found:
        wanted = next(listed[0] for listed in candidates.values() if listed)
        raise CheckpointError(
            f"{_folder(tensors)}: tensor {wanted} is missing: layer {layer} has no experts in any known layout"
        )
    return found[0]


def _folder(tensors: Tensors) -> Path:
    return Path(next(iter(tensors.values())).path).parent
