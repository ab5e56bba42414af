"""DiskStore: experts read from their files by direct reads into slots, on a small pool of threads."""

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from smoe.core.errors import StoreError
from smoe.offload.files import StoreFile
from smoe.offload.layout import Segment, SlotLayout
from smoe.offload.slots import View
from smoe.offload.store_stats import LinkStats, StoreStats

DEFAULT_THREADS = 4
DEFAULT_CHUNK_BYTES = 4 << 20


class Read:
    """One transfer: the segments of `layout` into `memory` (page-aligned), on behalf of `view`.

    Those that are `urgent` go before the others, as far as they have not begun. When it ends, `done(read)` is called
    on a thread of the store; `error` is None if all bytes have arrived.
    """

    __slots__ = ("done", "error", "layout", "left", "memory", "urgent", "view")

    def __init__(
        self,
        layout: SlotLayout,
        memory: memoryview,
        view: View,
        done: "Callable[[Read], object]",
        *,
        urgent: bool = True,
    ) -> None:
        self.layout, self.memory, self.view, self.done, self.urgent = layout, memory, view, done, urgent
        self.error: BaseException | None = None
        self.left = 0


class Store(Protocol):
    """A tier that experts are fetched from. One thread submits at a time, also from within `done`."""

    def submit(self, read: Read) -> None:
        """Begins a transfer and returns at once. `read.memory` belongs to the store until `done` is called."""
        ...

    def stats(self) -> StoreStats: ...

    def close(self) -> None:
        """Ends the transfers begun, then frees threads and files. Idempotent."""
        ...


class _Chunk(NamedTuple):
    read: Read
    file: StoreFile
    memory: memoryview
    offset: int
    needed: int


class DiskStore:
    """Reads of an expert are cut into chunks over all threads, so that one expert alone keeps the disk busy.

    A read that fails or comes back short is tried once more; then `read.error` is a StoreError with path and offset.
    """

    def __init__(
        self,
        layouts: Iterable[SlotLayout],
        *,
        num_threads: int = DEFAULT_THREADS,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    ) -> None:
        """Opens every file of `layouts`; `chunk_bytes` is whole pages. Raises StoreError for a file too short."""
        ends: dict[str, int] = {}
        for segment in (segment for layout in layouts for segment in layout.segments):
            ends[segment.path] = max(ends.get(segment.path, 0), segment.file_offset + segment.needed)
        self._chunk_bytes = chunk_bytes
        self._files: dict[str, StoreFile] = {}
        # Urgent chunks first, each kind in order of arrival; the end after all of them.
        self._queue: queue.PriorityQueue[tuple[int, int, _Chunk | None]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._lock = threading.Lock()
        self._reads = self._bytes = self._retries = self._failures = self._in_flight = 0
        self._busy_s = self._busy_since = 0.0
        self._threads: list[threading.Thread] = []
        try:
            for path, end in ends.items():
                self._files[path] = StoreFile(path, needed_bytes=end)
        except StoreError:
            self.close()
            raise
        for index in range(num_threads):
            thread = threading.Thread(target=self._work, name=f"smoe-disk-{index}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def submit(self, read: Read) -> None:
        chunks = [chunk for segment in read.layout.segments for chunk in self._cut(read, segment)]
        read.left = len(chunks)
        with self._lock:
            if self._in_flight == 0:
                self._busy_since = time.perf_counter()
            self._in_flight += 1
        for chunk in chunks:
            self._queue.put((0 if read.urgent else 1, next(self._order), chunk))

    def stats(self) -> StoreStats:
        by_mode: dict[bool, list[str]] = {True: [], False: []}
        for file in self._files.values():
            by_mode[file.direct].append(file.path)
        with self._lock:
            busy_s = self._busy_s + (time.perf_counter() - self._busy_since if self._in_flight else 0.0)
            return StoreStats(
                reads=self._reads,
                bytes_read=self._bytes,
                retries=self._retries,
                failures=self._failures,
                busy_s=busy_s,
                direct_files=tuple(by_mode[True]),
                buffered_files=tuple(by_mode[False]),
                links=(LinkStats(name="disk", transfers=self._reads, nbytes=self._bytes, busy_s=busy_s),),
            )

    def close(self) -> None:
        for _ in self._threads:
            self._queue.put((2, next(self._order), None))
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _cut(self, read: Read, segment: Segment) -> Iterable[_Chunk]:
        file = self._files[segment.path]
        for start in range(0, segment.length, self._chunk_bytes):
            stop = min(start + self._chunk_bytes, segment.length)
            memory = read.memory[segment.slot_offset + start : segment.slot_offset + stop]
            yield _Chunk(read, file, memory, segment.file_offset + start, min(stop, segment.needed) - start)

    def _work(self) -> None:
        while (chunk := self._queue.get()[2]) is not None:
            read = chunk.read
            try:
                if read.error is None:
                    self._fill(chunk)
            except BaseException as error:  # handed to whoever waits for the read, which must never wait forever
                read.error = error
            self._finish(read)

    def _fill(self, chunk: _Chunk) -> None:
        try:
            chunk.file.fill(chunk.memory, chunk.offset, chunk.needed)
        except OSError:
            with self._lock:
                self._retries += 1
            try:
                chunk.file.fill(chunk.memory, chunk.offset, chunk.needed)
            except OSError as error:
                raise StoreError(
                    f"{chunk.file.path}: reading {chunk.needed} bytes at offset {chunk.offset}: {error.strerror}"
                ) from error
        with self._lock:
            self._bytes += len(chunk.memory)

    def _finish(self, read: Read) -> None:
        with self._lock:
            read.left -= 1
            if read.left:
                return
            self._reads += 1
            self._failures += read.error is not None
            self._in_flight -= 1
            if self._in_flight == 0:
                self._busy_s += time.perf_counter() - self._busy_since
        read.done(read)
