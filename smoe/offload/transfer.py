"""Transfers from a store into slots: begun in order, delivered as they arrive."""

import queue
import time
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from smoe.kernels import ExpertTensors
from smoe.offload.arena import Arena
from smoe.offload.cache import View
from smoe.offload.shelf import STAGING_SLOTS, Shelf
from smoe.offload.store import Read, Store


class Arrival(NamedTuple):
    """`tensors` lie in the view's slot; None when the transfer failed, with the reason in `error`."""

    view: View
    tensors: ExpertTensors | None
    error: BaseException | None


class Transfers:
    """One thread begins and takes. From `begin` until its arrival is taken, a view's slot is the store's."""

    def __init__(self, shelf: Shelf, store: Store, arena: Arena) -> None:
        self.wait_s = 0.0
        self._shelf, self._store, self._arena = shelf, store, arena
        self._staging = Arena(STAGING_SLOTS, shelf.staging_bytes // STAGING_SLOTS) if shelf.staging_bytes else None
        self._free_staging = list(range(STAGING_SLOTS)) if self._staging else []
        self._staging_of: dict[int, int] = {}
        self._waiting: deque[View] = deque()
        self._ended: queue.SimpleQueue[Read] = queue.SimpleQueue()
        self._in_flight = 0

    @property
    def pending(self) -> int:
        """Transfers begun whose arrival has not been taken."""
        return len(self._waiting) + self._in_flight

    def begin(self, views: Iterable[View]) -> None:
        for view in views:
            self._arena.poison(view.slot)
            self._waiting.append(view)
        self._submit()

    def take(self) -> list[Arrival]:
        """All that have arrived, waiting for one if there is none. Something must be pending."""
        started = time.perf_counter()
        ended = [self._ended.get()]
        self.wait_s += time.perf_counter() - started
        while not self._ended.empty():
            ended.append(self._ended.get())
        self._in_flight -= len(ended)
        arrivals = [self._arrive(read) for read in ended]
        self._submit()
        return arrivals

    def _submit(self) -> None:
        while self._waiting:
            view = self._waiting[0]
            memory = self._arena.buffer(view.slot)
            if self._staging is not None and self._shelf.is_staged(view.layer, view.expert):
                if not self._free_staging:
                    return
                self._staging_of[view.slot] = self._free_staging.pop()
                memory = self._staging.buffer(self._staging_of[view.slot])
            self._waiting.popleft()
            self._in_flight += 1
            self._store.submit(Read(self._shelf.layout(view.layer, view.expert), memory, view, self._ended.put))

    def _arrive(self, read: Read) -> Arrival:
        view, slot = read.view, self._arena.tensor(read.view.slot)
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
                self._free_staging.append(staging)
        return Arrival(view, tensors, None)
