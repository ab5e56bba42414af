"""Files of tensors, spoilt after they were written."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def rewritten(path: Path, change: Callable[[dict[str, torch.Tensor]], object], **metadata: str) -> None:
    """With other tensors or metadata, and otherwise right."""
    with safe_open(path, "pt") as file:
        kept = dict(file.metadata())
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata=kept | metadata)


def an_older_form(path: Path) -> None:
    rewritten(path, lambda t: None, version="0")
