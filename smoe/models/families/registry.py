"""Which family serves a `model_type`; a family's module is imported when it is asked for."""

from importlib import import_module

from smoe.core.errors import CheckpointError
from smoe.models.checkpoint import Family

_MODULES = {
    "deepseek_v2": "deepseek_v2",
    "deepseek_v3": "deepseek_v3",
    "gpt_oss": "gpt_oss",
    "mixtral": "mixtral",
    "olmoe": "olmoe",
    "phimoe": "phi35_moe",
    "qwen2_moe": "qwen2_moe",
    "qwen3_moe": "qwen3_moe",
    "qwen3_next": "qwen3_next",
}


def supported_model_types() -> tuple[str, ...]:
    return tuple(sorted(_MODULES))


def family_for(model_type: str) -> Family:
    """Raises CheckpointError when no family serves `model_type` (the field of config.json)."""
    if model_type not in _MODULES:
        raise CheckpointError(f"config.json: model_type: {model_type!r} (one of {', '.join(supported_model_types())})")
    family: Family = import_module(f"smoe.models.families.{_MODULES[model_type]}").FAMILY
    return family
