"""Where what was made or measured on this machine is kept."""

import os
from pathlib import Path


def cache_root() -> Path:
    """`smoe` under $XDG_CACHE_HOME, or else ~/.cache. Deleting it is harmless."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smoe"
