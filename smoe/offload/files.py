"""One file of a disk store: opened once, read by whole pages, and known to be the file that was opened."""

import errno
import fcntl
import os

from smoe.core.errors import StoreError
from smoe.core.pages import PAGE_BYTES


class StoreFile:
    """Reads go to the file that `path` named at opening, also when another is renamed over it later.

    Threads may read at the same time. `direct` is False once the file system has refused a direct read.
    """

    def __init__(self, path: str, *, needed_bytes: int) -> None:
        """Raises StoreError when the file cannot be opened or has fewer than `needed_bytes`."""
        self.path = path
        try:
            try:
                self._fd, self.direct = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT), True
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
                self._fd, self.direct = os.open(path, os.O_RDONLY | os.O_CLOEXEC), False
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error
        self._opened = os.fstat(self._fd)
        if self._opened.st_size < needed_bytes:
            self.close()
            raise StoreError(f"{path}: has {self._opened.st_size} bytes, expert weights need {needed_bytes}")

    def fill(self, memory: memoryview, offset: int, needed: int) -> None:
        """Reads len(memory) bytes (whole pages, page-aligned memory) at `offset` (a page boundary); `needed` must come.

        Raises OSError on a failed or short read, or when the file has changed since it was opened.
        """
        self._check_unchanged()
        got = 0
        while got < needed:
            try:
                count = os.preadv(self._fd, [memory[got:] if self.direct else memory[got:needed]], offset + got)
            except OSError as error:
                if not (self.direct and error.errno == errno.EINVAL and got % PAGE_BYTES == 0):
                    raise
                self._leave_direct()
                continue
            if count == 0:
                raise OSError(errno.ENODATA, f"got {got} of {needed} bytes, the file ends there")
            got += count
            if got < needed and self.direct and got % PAGE_BYTES:
                raise OSError(errno.ENODATA, f"got {got} of {needed} bytes")
        if not self.direct:
            os.posix_fadvise(self._fd, offset, len(memory), os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._fd)

    def _check_unchanged(self) -> None:
        now, then = os.fstat(self._fd), self._opened
        if (now.st_size, now.st_mtime_ns) != (then.st_size, then.st_mtime_ns):
            change = f"{then.st_size} to {now.st_size} bytes" if now.st_size != then.st_size else "rewritten in place"
            raise OSError(errno.ESTALE, f"the file changed since it was opened: {change}")

    def _leave_direct(self) -> None:
        fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~os.O_DIRECT)
        self.direct = False
