"""The model folder and its transformers config; local files and known code only."""

import json
from pathlib import Path
from typing import Any

from smoe.core.errors import CheckpointError

BUILTIN = "builtin"
_ASSETS = Path(__file__).resolve().parents[2] / "assets"


def model_folder(folder: str | Path) -> Path:
    """The folder that a model argument means: `builtin` is the packaged model. Raises CheckpointError."""
    if str(folder) == BUILTIN:
        return _ASSETS / "builtin"
    path = Path(folder)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such model folder (a folder in Hugging Face format, or {BUILTIN!r})")
    return path


def read_config(folder: Path) -> tuple[str, Any]:
    """(model_type, transformers config). Raises CheckpointError naming the file."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: broken JSON: {error}") from error
    model_type = raw.get("model_type") if isinstance(raw, dict) else None
    if not isinstance(model_type, str):
        raise CheckpointError(f"{path}: has no model_type")
    _check_quantization(path, raw.get("quantization_config"))
    # transformers takes a second to import; a folder that is wrong fails before.
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises many kinds here, some with the cause on the second line
        message = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{path}: transformers does not read it: {message}") from error
    return model_type, config


def _check_quantization(path: Path, quantization: Any) -> None:
    if quantization is None:
        return
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    if method != "mxfp4":
        raise CheckpointError(f"{path}: quantization_config {method!r} is not supported (mxfp4 experts, or none)")
