"""Stores that differ from a disk only in when, and whether, a read ends."""

import random
import threading
from collections.abc import Callable

from smoe.core.errors import StoreError
from smoe.offload.store import Read
from smoe.offload.store_stats import StoreStats


def fill(read: Read) -> None:
    """The bytes of `read`, by plain reads."""
    for segment in read.layout.segments:
        with open(segment.path, "rb") as file:
            file.seek(segment.file_offset)
            content = file.read(segment.length)
        assert len(content) >= segment.needed
        read.memory[segment.slot_offset : segment.slot_offset + len(content)] = content


class InstantStore:
    """Every read has ended when `submit` returns. `refuses(read)` makes it fail."""

    def __init__(self, refuses: Callable[[Read], bool] = lambda read: False) -> None:
        self.submitted: list[tuple[int, int]] = []
        self.bytes_read = 0
        self._refuses = refuses

    def submit(self, read: Read) -> None:
        self.submitted.append(read.view[:2])
        self._finish(read)

    def stats(self) -> StoreStats:
        return StoreStats(
            reads=len(self.submitted),
            bytes_read=self.bytes_read,
            retries=0,
            failures=0,
            busy_s=0.0,
            direct_files=(),
            buffered_files=(),
        )

    def close(self) -> None:
        return

    def _finish(self, read: Read) -> None:
        if self._refuses(read):
            read.error = StoreError(f"{read.layout.segments[0].path}: refused")
        else:
            fill(read)
            self.bytes_read += read.layout.room
        read.done(read)


class GatedStore(InstantStore):
    """Reads of `(layer, expert)` for which `held` wait until `release`; the others end at once."""

    def __init__(self, held: Callable[[tuple[int, int]], bool]) -> None:
        super().__init__()
        self._held, self._waiting = held, []

    def submit(self, read: Read) -> None:
        self.submitted.append(read.view[:2])
        if self._held(read.view[:2]):
            self._waiting.append(read)
        else:
            self._finish(read)

    def release(self) -> None:
        """Ends what waits, and holds nothing from here on."""
        self._held, waiting, self._waiting = lambda key: False, self._waiting, []
        for read in waiting:
            self._finish(read)


class ShuffledStore(InstantStore):
    """Ends the reads it has in random order, one after the other, on a thread of its own."""

    def __init__(self, seed: int, refuses: Callable[[Read], bool] = lambda read: False) -> None:
        super().__init__(refuses)
        self._chance, self._held, self._open = random.Random(seed), [], True
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, read: Read) -> None:
        with self._changed:
            self.submitted.append(read.view[:2])
            self._held.append(read)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._held or not self._open)
                if not self._held:
                    return
                read = self._held.pop(self._chance.randrange(len(self._held)))
            self._finish(read)
