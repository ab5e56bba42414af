"""A hard bound on the memory of a contender's process, page cache included: a control group (v1, needs root)."""

import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

_ROOT = Path("/sys/fs/cgroup/memory")


class MemoryLimit:
    """A control group of `limit_bytes` while open. `folder` is None where none can be made; `reason` says why.

    A process joins by `join(folder)`; what it allocated before stays outside.
    """

    def __init__(self, limit_bytes: int, *, root: Path = _ROOT) -> None:
        self.limit_bytes, self.reason = limit_bytes, ""
        self.folder: Path | None = None
        folder = root / f"smoe-bench-{os.getpid()}"
        if not (root / "memory.limit_in_bytes").exists():
            self.reason = "no memory control group (v1) here"
            return
        try:
            folder.mkdir()
            (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        except OSError as error:
            self.reason = f"no control group can be made: {error.strerror}"
            if folder.exists():
                folder.rmdir()
            return
        self.folder = folder

    @property
    def peak_bytes(self) -> int | None:
        """The most the group has held, page cache included."""
        return None if self.folder is None else int((self.folder / "memory.max_usage_in_bytes").read_text())

    def reset_peak(self) -> None:
        if self.folder is not None:
            (self.folder / "memory.max_usage_in_bytes").write_text("0")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if self.folder is not None:
            self.folder.rmdir()


def join(folder: str | None) -> None:
    """This process joins the group of `folder`; None leaves it where it is."""
    if folder is not None:
        (Path(folder) / "cgroup.procs").write_text(str(os.getpid()))


def drop_page_cache(files: Iterable[Path]) -> None:
    """Clean pages of `files` that nobody maps leave memory."""
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
