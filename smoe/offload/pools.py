"""A second processor, emulated: a thread on a core of its own, which computes where weights are beside the first."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


class SecondCore:
    """Runs one thing after the other, beside the thread that calls. The kernels give up the interpreter's lock, so both
    compute at once; each writes outputs of its own, so there is nothing to agree on but when both have ended."""

    def __init__(self, core: int | None = None) -> None:
        """`core` of this process's, where the system lets a thread have one."""
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="smoe-second", initializer=_settle, initargs=(core,))
        # Threads made later would begin with the number that the last one said.
        mine = torch.get_num_threads()
        self._threads.submit(_nothing).result()
        torch.set_num_threads(mine)

    def begin(self, work: Callable[[], T]) -> Future[T]:
        return self._threads.submit(work)

    def close(self) -> None:
        self._threads.shutdown()


def _settle(core: int | None) -> None:
    torch.get_num_threads()  # the first thing that a thread asks gives it the number of all: let that be over
    torch.set_num_threads(1)
    if core is not None:
        keep_to(core)


def keep_to(core: int) -> None:
    """This thread runs on `core` from now on. Elsewhere than on Linux nothing happens."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(threading.get_native_id(), {core})


def _nothing() -> None:
    return
