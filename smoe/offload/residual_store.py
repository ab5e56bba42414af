"""ResidualStore: experts read as what their 4-bit copy does not know of them, and rebuilt in their slots."""

import itertools
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch

from smoe.core.errors import StoreError
from smoe.core.pages import whole_pages
from smoe.models.quantised import expert_of
from smoe.models.residual import Piece, unpack_expert
from smoe.models.residual_file import ResidualFile
from smoe.offload.layout import Segment, SlotLayout
from smoe.offload.shelf import ResidualForm
from smoe.offload.store import Read, Store
from smoe.offload.store_stats import LinkStats, StoreStats

DEFAULT_THREADS = 2
"""Of those that rebuild. One keeps up with a disk of 5 GB/s; two end sooner when several experts come at once."""

Layouts = Mapping[tuple[int, int], SlotLayout]


def residual_layouts(file: ResidualFile) -> Layouts:
    """By (layer, expert): where its piece is in the file, for reads to the beginning of a piece of memory."""
    layouts = {}
    for key, piece in file.pieces.items():
        length = whole_pages(piece.nbytes)
        layouts[key] = SlotLayout((Segment(str(file.path), piece.offset, length, length, 0),), {}, length)
    return layouts


class ResidualStore:
    """Over a store of the residual file, which it closes. A piece is read to the end of its slot and the expert rebuilt
    over it, on threads of its own, so that the next ones are read meanwhile. Bytes and times are those of `below`."""

    def __init__(
        self,
        below: Store,
        shelf: ResidualForm,
        file: ResidualFile,
        layouts: Layouts,
        *,
        num_threads: int = DEFAULT_THREADS,
    ) -> None:
        self._below, self._shelf, self._file, self._layouts = below, shelf, file, layouts
        self._queue: queue.PriorityQueue[tuple[int, int, Read | None]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._lock = threading.Lock()
        self._rebuilt = self._rebuilt_bytes = self._failures = 0
        self._rebuilding_s = 0.0
        self._threads = [
            threading.Thread(target=self._work, name=f"smoe-residual-{index}", daemon=True)
            for index in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, read: Read) -> None:
        layout = self._layouts[read.view[:2]]
        memory = read.memory[read.layout.room - layout.room : read.layout.room]
        self._below.submit(Read(layout, memory, read.view, partial(self._arrived, read), urgent=read.urgent))

    def stats(self) -> StoreStats:
        stats = self._below.stats()
        with self._lock:
            work = LinkStats(
                name="rebuild", transfers=self._rebuilt, nbytes=self._rebuilt_bytes, busy_s=self._rebuilding_s
            )
            return replace(stats, failures=stats.failures + self._failures, links=(*stats.links, work))

    def close(self) -> None:
        self._below.close()
        for _ in self._threads:
            self._queue.put((2, next(self._order), None))
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _arrived(self, read: Read, piece: Read) -> None:
        if piece.error is None:
            self._queue.put((0 if read.urgent else 1, next(self._order), read))
        else:
            read.error = piece.error
            read.done(read)

    def _work(self) -> None:
        while (read := self._queue.get()[2]) is not None:
            began = time.perf_counter()
            try:
                self._rebuild(read)
            except BaseException as error:  # handed to whoever waits for the read, which must never wait forever
                read.error = error
            with self._lock:
                self._rebuilding_s += time.perf_counter() - began
                self._rebuilt += 1
                self._rebuilt_bytes += read.layout.room
                self._failures += read.error is not None
            read.done(read)

    def _rebuild(self, read: Read) -> None:
        key, room = read.view[:2], read.layout.room
        layer, expert = key
        kept, memory = self._file.pieces[key], torch.frombuffer(read.memory, dtype=torch.uint8)
        start = room - self._layouts[key].room
        piece = Piece(memory[start : start + kept.nbytes], kept.check, kept.whole)
        copy = expert_of(self._file.copy[layer], expert)
        try:
            unpack_expert(memory, piece, self._shelf.source(*key), self._shelf.dtype, copy, self._file.group_size)
        except ValueError as error:
            where = f"{self._file.path}: expert {expert} of layer {layer}"
            raise StoreError(f"{where}: {error}; delete the file, and it is made again") from error
