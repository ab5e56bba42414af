"""EmulatedStore: another store whose link into the slots is a slower, declared one."""

import itertools
import queue
import threading
import time
from dataclasses import replace
from functools import partial

from smoe.core.link_model import LinkModel
from smoe.offload.store import Read, Store
from smoe.offload.store_stats import StoreStats


class EmulatedStore:
    """One transfer at a time, urgent ones first, each held back until the link would have delivered it.

    The bytes come from `store`, which it closes; where that is slower than the link, the transfer takes as long.
    """

    def __init__(self, store: Store, link: LinkModel) -> None:
        self._store, self._link, self._busy_s = store, link, 0.0
        self._queue: queue.PriorityQueue[tuple[int, int, Read | None]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._thread = threading.Thread(target=self._run, name="smoe-link", daemon=True)
        self._thread.start()

    def submit(self, read: Read) -> None:
        self._queue.put((0 if read.urgent else 1, next(self._order), read))

    def stats(self) -> StoreStats:
        stats, busy_s = self._store.stats(), self._busy_s
        slowed = tuple(replace(link, busy_s=busy_s, emulated=True) for link in stats.links[-1:])
        return replace(stats, busy_s=busy_s, links=(*stats.links[:-1], *slowed))

    def close(self) -> None:
        self._queue.put((2, next(self._order), None))
        self._thread.join()
        self._store.close()

    def _run(self) -> None:
        while (read := self._queue.get()[2]) is not None:
            arrived = threading.Event()
            inner = Read(read.layout, read.memory, read.view, partial(_set, arrived))
            began = time.monotonic()
            due = began + self._link.transfer_s(read.layout.room)
            self._store.submit(inner)
            arrived.wait()
            time.sleep(max(0.0, due - time.monotonic()))
            self._busy_s += time.monotonic() - began
            read.error = inner.error
            read.done(read)


def _set(arrived: threading.Event, _read: Read) -> None:
    arrived.set()
