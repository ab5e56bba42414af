"""How much memory this process may still take."""

from pathlib import Path

import psutil

_UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2^63 for "no limit"


def free_bytes(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Memory available on the machine, or what is left of the tightest limit on the control groups of this process."""
    machine = int(psutil.virtual_memory().available)
    return min([machine, *(_left(folder) for folder in _folders(cgroups, own))])


def _folders(cgroups: Path, own: Path) -> list[Path]:
    """This process's memory groups and the groups around them, of either version, as far as they are mounted."""
    if not own.is_file():
        return []
    found: list[Path] = []
    for line in own.read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroups / "memory" if controllers else cgroups
        inner = root / group.lstrip("/")
        found.extend(folder for folder in (inner, *inner.parents) if folder.is_relative_to(root) and folder.is_dir())
    return found


def _left(group: Path) -> int:
    """Limit minus use of one group; page cache that the kernel drops at need counts as free."""
    for limit_name, used_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = _number(group / limit_name), _number(group / used_name)
        if limit is not None and used is not None and limit < _UNLIMITED:
            return max(0, limit - used + _stat(group / "memory.stat", cache_name))
    return _UNLIMITED


def _number(path: Path) -> int | None:
    if not path.is_file():
        return None
    text = path.read_text().strip()
    return int(text) if text.isdigit() else None


def _stat(path: Path, name: str) -> int:
    if not path.is_file():
        return 0
    return sum(int(value) for key, value in map(str.split, path.read_text().splitlines()) if key == name)
