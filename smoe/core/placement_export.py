"""Placements for other engines: the arrays of DeepSeek's EPLB, and TensorRT-LLM's load balancer file."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from smoe.core.errors import ConfigError, PlacementError
from smoe.core.placement import Array, Placement
from smoe.core.placement_maps import expert2slots

SUFFIXES = {"eplb": (".npz", ".safetensors"), "tensorrt-llm": (".yaml", ".yml")}
FORMATS = tuple(SUFFIXES)


def export(placement: Placement, form: str, path: str | Path) -> None:
    """Writes `path` in the format named `form`, replacing it. Raises ConfigError, or PlacementError for a placement
    that the other engine has no words for."""
    if form not in SUFFIXES:
        raise ConfigError("format", form, f"one of {', '.join(FORMATS)}")
    suffix = Path(path).suffix
    if suffix not in SUFFIXES[form]:
        raise ConfigError("out", str(path), f"a name that ends in {' or '.join(SUFFIXES[form])} for {form}")
    if form == "tensorrt-llm":
        Path(path).write_text(tensorrt_llm_yaml(placement), encoding="utf-8")
    elif suffix == ".npz":
        arrays: dict[str, Any] = eplb_arrays(placement)
        np.savez(path, **arrays)
    else:
        Path(path).write_bytes(save(eplb_arrays(placement)))


def eplb_arrays(placement: Placement) -> dict[str, Array]:
    """`phy2log` [L, P], `log2phy` [L, E, R] with -1 behind the last copy and `logcnt` [L, E], as `rebalance_experts`
    returns them; `layers` [L] says which decoder layer a row is. All i64.

    An EPLB user cuts the slots evenly. Raises PlacementError where they are not even.
    """
    _check_even(placement, "EPLB")
    slots, count = expert2slots(placement)
    arrays = {
        "phy2log": placement.slot2expert,
        "log2phy": slots,
        "logcnt": count,
        "layers": np.asarray(placement.layers),
    }
    return {name: np.ascontiguousarray(array, dtype=np.int64) for name, array in arrays.items()}


def tensorrt_llm_yaml(placement: Placement) -> str:
    """The file that TensorRT-LLM's `moe_config.load_balancer` names: a static placement, by decoder layer.

    Raises PlacementError where the slots of the devices are not even.
    """
    import yaml

    _check_even(placement, "TensorRT-LLM")
    rows = zip(placement.layers, placement.slot2expert.tolist(), strict=True)
    fields = {
        "num_slots": int(placement.slot2expert.shape[1]),
        "initial_global_assignments": dict(rows),
        "layer_updates_per_iter": 0,
    }
    # Lists in one line each; a wide page keeps them so.
    return str(yaml.safe_dump(fields, sort_keys=False, default_flow_style=None, width=1 << 20))


def _check_even(placement: Placement, engine: str) -> None:
    if len(set(placement.slots_of_device)) > 1:
        slots = list(placement.slots_of_device)
        raise PlacementError(f"slots_of_device: {slots} ({engine} deals the same number to every device)")
