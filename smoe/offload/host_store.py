"""HostStore: experts copied into slots from host memory; what is not there comes from a store below first."""

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from smoe.offload.arena import Arena
from smoe.offload.copies import CopyEngine, MemoryCopies
from smoe.offload.host import HostMemory
from smoe.offload.shelf import STAGING_SLOTS, Shelf
from smoe.offload.slots import View
from smoe.offload.store import Read, Store
from smoe.offload.store_stats import LinkStats, StoreStats
from smoe.offload.transfer import Transfers

FILL_DEPTH = 8
Job = Callable[[], None]


class _Ticket(NamedTuple):
    """A read and its place in the queue, which all its steps keep; the last of all places has none."""

    urgency: int
    order: int
    read: Read | None


class HostStore:
    """Delivers slot form (smoe.offload.shelf.SlotForm): layouts of its reads say no more than their size.

    One thread does everything in steps of a chunk, urgent reads first; only small copies are done by `submit` itself.
    A miss is read into host memory and copied on from there: its slot of the host is a hit for the next one only once
    all of it has arrived. When every slot of the host is in use, it is read past the host memory; where slots have no
    address here, it waits for one.
    """

    def __init__(self, shelf: Shelf, memory: HostMemory, below: Store | None, copies: CopyEngine | None = None) -> None:
        """`below` delivers by the layouts of `shelf`; None when `memory` has all experts. Closes both when closed."""
        self._shelf, self._memory, self._below = shelf, memory, below
        self._copies = MemoryCopies() if copies is None else copies
        staged = below is not None and shelf.staging_bytes > 0
        self._staging = Arena(STAGING_SLOTS, shelf.staging_bytes // STAGING_SLOTS) if staged else None
        self._free_staging = list(range(STAGING_SLOTS)) if staged else []
        self._want_staging: deque[tuple[_Ticket, Read, View | None]] = deque()
        self._want_host: list[tuple[_Ticket, Read]] = []
        self._freed = 0  # how often a slot of the host may have come free
        # A read has one step in the queue at most, so that no two entries compare equal.
        self._jobs: queue.PriorityQueue[tuple[_Ticket, Job]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._lock = threading.Lock()
        self._reads = self._bytes = self._failures = self._in_flight = self._copied = self._copied_bytes = 0
        self._busy_s = self._busy_since = self._copy_s = 0.0
        self._locked = self._copies.locked(memory.arena.whole)
        self._locked.__enter__()
        if not self._copies.reaches_slots:
            memory.on_free = self._on_free
        self._thread = threading.Thread(target=self._run, name="smoe-host", daemon=True)
        self._thread.start()

    def submit(self, read: Read) -> None:
        with self._lock:
            if self._in_flight == 0:
                self._busy_since = time.perf_counter()
            self._in_flight += 1
        if read.layout.room <= self._copies.small_bytes:
            view = self._memory.try_pin(*read.view[:2])
            if view is not None:
                self._copy(None, read, view, 0)
                return
        ticket = _Ticket(0 if read.urgent else 1, next(self._order), read)
        self._jobs.put((ticket, partial(self._start, ticket, read)))

    def stats(self) -> StoreStats:
        below = None if self._below is None else self._below.stats()
        with self._lock:
            running = time.perf_counter() - self._busy_since if self._in_flight else 0.0
            link = LinkStats(name="host", transfers=self._copied, nbytes=self._copied_bytes, busy_s=self._copy_s)
            return StoreStats(
                reads=self._reads,
                bytes_read=self._bytes,
                retries=0 if below is None else below.retries,
                failures=self._failures,
                busy_s=self._busy_s + running,
                direct_files=() if below is None else below.direct_files,
                buffered_files=() if below is None else below.buffered_files,
                links=(*(() if below is None else below.links), link),
                budget_bytes=self._fixed_bytes + self._memory.arena.nbytes,
                peak_bytes=self._fixed_bytes + self._memory.peak_bytes,
            )

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        self._jobs.put((_Ticket(2, next(self._order), None), _nothing))
        self._thread.join()
        if self._below is not None:
            self._below.close()
        self._locked.__exit__(None, None, None)
        self._memory.close()

    @property
    def _fixed_bytes(self) -> int:
        return 0 if self._staging is None else self._staging.nbytes

    def _run(self) -> None:
        closing = False
        while not (closing and self._in_flight == 0):
            ticket, job = self._jobs.get()
            if ticket.read is None:
                closing = True
                continue
            try:
                job()
            except BaseException as error:  # whoever waits for the read must never wait forever
                self._end(ticket.read, error)

    def _start(self, ticket: _Ticket, read: Read) -> None:
        with self._lock:
            freed = self._freed
        view = self._memory.try_pin(*read.view[:2])
        if view is not None:
            self._copy(ticket, read, view, 0)
            return
        host = self._memory.try_reserve(*read.view[:2])
        if host is not None or self._copies.reaches_slots:
            self._fetch(ticket, read, host)
            return
        with self._lock:
            if freed == self._freed:
                self._want_host.append((ticket, read))
                return
        self._jobs.put((ticket, partial(self._start, ticket, read)))  # one came free after it had been asked for

    def _on_free(self) -> None:
        with self._lock:
            self._freed += 1
            waiting, self._want_host = self._want_host, []
        for ticket, read in waiting:
            self._jobs.put((ticket, partial(self._start, ticket, read)))

    def _fetch(self, ticket: _Ticket, read: Read, host: View | None) -> None:
        """From below: into `host`, or into the slot itself where the host has none to give."""
        assert self._below is not None
        layer, expert = read.view[:2]
        piece = None
        if self._staging is not None and self._shelf.is_staged(layer, expert):
            if not self._free_staging:
                self._want_staging.append((ticket, read, host))
                return
            piece = self._free_staging.pop()
            memory = self._staging.buffer(piece)
        else:
            memory = read.memory if host is None else self._memory.arena.buffer(host.slot)

        def done(inner: Read) -> None:
            self._jobs.put((ticket, partial(self._fetched, ticket, read, host, piece, inner)))

        self._below.submit(Read(self._shelf.layout(layer, expert), memory, read.view, done, urgent=read.urgent))

    def _fetched(self, ticket: _Ticket, read: Read, host: View | None, piece: int | None, inner: Read) -> None:
        layer, expert = read.view[:2]
        slot = torch.frombuffer(read.memory, dtype=torch.uint8) if host is None else self._memory.slot(host)
        try:
            if inner.error is not None:
                raise inner.error
            if piece is not None and self._staging is not None:
                tensors = self._shelf.convert(layer, expert, self._staging.tensor(piece), slot)
            else:
                tensors = self._shelf.view(layer, expert, slot)
        except Exception as error:
            if host is not None:
                self._memory.failed(host)
            self._end(read, error)
            return
        finally:
            if piece is not None:
                self._free_staging.append(piece)
                if self._want_staging:
                    self._fetch(*self._want_staging.popleft())
        if host is None:
            self._end(read, None)
        else:
            self._memory.filled(host, tensors)
            self._copy(ticket, read, host, 0)

    def _copy(self, ticket: _Ticket | None, read: Read, host: View, start: int) -> None:
        """One chunk; the next one is another job, so that it waits for what has become more urgent. Without a ticket
        there is no next one."""
        stop = min(start + self._copies.chunk_bytes, read.layout.room)
        began = time.perf_counter()
        self._copies.begin(read, start, self._memory.slot(host)[start:stop]).wait()
        with self._lock:
            self._copy_s += time.perf_counter() - began
            self._copied_bytes += stop - start
            self._copied += stop == read.layout.room
        if stop < read.layout.room and ticket is not None:
            self._jobs.put((ticket, partial(self._copy, ticket, read, host, stop)))
        else:
            self._memory.unpin(host)
            self._end(read, None)

    def _end(self, read: Read, error: BaseException | None) -> None:
        read.error = error
        with self._lock:
            self._reads += 1
            self._failures += error is not None
            self._bytes += 0 if error is not None else read.layout.room
            self._in_flight -= 1
            if self._in_flight == 0:
                self._busy_s += time.perf_counter() - self._busy_since
        read.done(read)


def fill_all(shelf: Shelf, memory: HostMemory, store: Store) -> None:
    """Every expert of `shelf` from `store` into `memory`, which has a slot for each; no more than a few at a time.

    Raises the first error, when nothing is under way any more.
    """
    transfers = Transfers(shelf, store, memory.arena)
    left = deque(shelf.experts)
    errors: list[BaseException] = []
    while left or transfers.pending:
        while left and transfers.pending < FILL_DEPTH and not errors:
            view = memory.try_reserve(*left.popleft())
            assert view is not None
            transfers.begin([view])
        if errors:
            left.clear()
        for arrival in transfers.take() if transfers.pending else ():
            if arrival.tensors is None:
                assert arrival.error is not None
                errors.append(arrival.error)
                memory.failed(arrival.view)
            else:
                memory.filled(arrival.view, arrival.tensors)
                memory.unpin(arrival.view)
    if errors:
        raise errors[0]


def _nothing() -> None:
    return
