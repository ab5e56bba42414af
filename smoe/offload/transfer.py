"""Transfers from a store into slots: a queue by deadline, delivered as they arrive.

What a pass waits for goes to the store at once. Background transfers go one by one, earliest deadline first, each when
little else is under way, so that one that becomes urgent, or a miss, has little before it; until then they can be
cancelled.
"""

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from smoe.kernels import ExpertTensors
from smoe.offload.arena import Arena
from smoe.offload.shelf import STAGING_SLOTS, Shelf
from smoe.offload.slots import View
from smoe.offload.store import Read, Store

URGENT = 0
"""A deadline before all others: a pass waits."""
BACKGROUND_DEPTH = 2
"""Background transfers begin while fewer than this are at the store: one to be read, one to follow without a gap."""


class Arrival(NamedTuple):
    """`tensors` lie in the view's slot; None when the transfer failed, with the reason in `error`."""

    view: View
    tensors: ExpertTensors | None
    error: BaseException | None


class Transfers:
    """One thread calls. From `begin` until its arrival is taken (or it is cancelled), a view's slot is the store's."""

    def __init__(self, shelf: Shelf, store: Store, arena: Arena) -> None:
        self.wait_s = 0.0
        self._shelf, self._store, self._arena = shelf, store, arena
        self._staging = Arena(STAGING_SLOTS, shelf.staging_bytes // STAGING_SLOTS) if shelf.staging_bytes else None
        self._free_staging = list(range(STAGING_SLOTS)) if self._staging else []
        self._staging_of: dict[int, int] = {}
        # Threads of the store empty the queue too, as room comes up. A store may call back from within `submit`.
        self._lock = threading.RLock()
        self._queue: list[tuple[int, int, View]] = []
        self._deadline: dict[View, int] = {}  # of what is queued; entries of the queue that differ are void
        self._order = itertools.count()
        self._at_store = self._untaken = 0
        self._submitting = False
        self._ended: queue.SimpleQueue[Read] = queue.SimpleQueue()

    @property
    def pending(self) -> int:
        """Transfers begun whose arrival has not been taken."""
        return len(self._deadline) + self._untaken

    def begin(self, views: Iterable[View], deadline: int = URGENT) -> None:
        """`deadline` above 0, of a background transfer: the ordinal of the pass that may ask for it."""
        for view in views:
            self._arena.poison(view.slot)
            self._put(view, deadline)
        self._submit()

    def promote(self, view: View) -> None:
        """A background transfer is waited for now. Does nothing for one that is at the store or has ended."""
        with self._lock:
            if view in self._deadline:
                self._put(view, URGENT)
        self._submit()

    def try_cancel(self, view: View) -> bool:
        """Whether the transfer had not gone to the store yet; then it never will, and nothing arrives."""
        with self._lock:
            return self._deadline.pop(view, None) is not None

    def take(self) -> list[Arrival]:
        """All that have arrived, waiting for one if there is none. Something must be pending."""
        started = time.perf_counter()
        first = self._ended.get()
        self.wait_s += time.perf_counter() - started
        return self._arrivals([first])

    def poll(self) -> list[Arrival]:
        """All that have arrived, perhaps nothing."""
        return [] if self._ended.empty() else self._arrivals([])

    def close(self) -> None:
        """Forgets what has not gone to the store."""
        with self._lock:
            self._deadline.clear()
            self._queue.clear()

    def _arrivals(self, ended: list[Read]) -> list[Arrival]:
        while not self._ended.empty():
            ended.append(self._ended.get())
        with self._lock:
            self._untaken -= len(ended)
        arrivals = [self._arrive(read) for read in ended]
        self._submit()
        return arrivals

    def _put(self, view: View, deadline: int) -> None:
        with self._lock:
            self._deadline[view] = deadline
            heapq.heappush(self._queue, (deadline, next(self._order), view))

    def _end(self, read: Read) -> None:
        with self._lock:
            self._at_store -= 1
        self._ended.put(read)
        self._submit()

    def _submit(self) -> None:
        with self._lock:
            if self._submitting:
                return
            self._submitting = True
            try:
                while (head := self._next()) is not None:
                    deadline, view = head
                    memory = self._memory(view)
                    if memory is None:
                        return
                    heapq.heappop(self._queue)
                    del self._deadline[view]
                    self._at_store += 1
                    self._untaken += 1
                    layout = self._shelf.layout(view.layer, view.expert)
                    self._store.submit(Read(layout, memory, view, self._end, urgent=deadline == URGENT))
            finally:
                self._submitting = False

    def _next(self) -> tuple[int, View] | None:
        """The head of the queue, if it may go."""
        while self._queue:
            deadline, _, view = self._queue[0]
            if self._deadline.get(view) == deadline:
                return (deadline, view) if deadline == URGENT or self._at_store < BACKGROUND_DEPTH else None
            heapq.heappop(self._queue)
        return None

    def _memory(self, view: View) -> memoryview | None:
        """Where to read to; None while all staging memory is in use."""
        if self._staging is None or not self._shelf.is_staged(view.layer, view.expert):
            return self._arena.buffer(view.slot)
        if not self._free_staging:
            return None
        self._staging_of[view.slot] = self._free_staging.pop()
        return self._staging.buffer(self._staging_of[view.slot])

    def _arrive(self, read: Read) -> Arrival:
        view, slot = read.view, self._arena.tensor(read.view.slot)
        with self._lock:
            staging = self._staging_of.pop(view.slot, None)
        try:
            if read.error is not None:
                raise read.error
            if staging is not None and self._staging is not None:
                tensors = self._shelf.convert(view.layer, view.expert, self._staging.tensor(staging), slot)
            else:
                tensors = self._shelf.view(view.layer, view.expert, slot)
        except Exception as error:
            self._arena.poison(view.slot)
            return Arrival(view, None, error)
        finally:
            if staging is not None:
                with self._lock:
                    self._free_staging.append(staging)
        return Arrival(view, tensors, None)
