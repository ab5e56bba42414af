"""What a figure depends on besides the code: hardware, versions, commit."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import psutil

_PACKAGES = ("torch", "transformers", "ray", "triton", "numpy", "tokenizers", "safetensors")


def describe() -> dict[str, object]:
    """Plain JSON values; a package that is not installed is absent."""
    return {"hardware": _hardware(), "versions": _versions(), "commit": _commit(), "load_average": os.getloadavg()}


def _hardware() -> dict[str, object]:
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(logical=False),
        "threads": torch.get_num_threads(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus,
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _versions() -> dict[str, str]:
    installed = {d.metadata["Name"].lower(): d.version for d in metadata.distributions()}
    found = {name: installed[name] for name in _PACKAGES if name in installed}
    return {"python": platform.python_version(), "smoe": installed.get("smoe", "source"), **found}


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
