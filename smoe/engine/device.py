"""Where a model computes."""

import torch

from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError


def compute_device(config: EngineConfig) -> torch.device:
    """Raises ConfigError for what this version cannot compute on."""
    if config.device == "cuda":
        raise ConfigError("device", config.device, "auto or cpu: this version computes on the CPU")
    return torch.device("cpu")
