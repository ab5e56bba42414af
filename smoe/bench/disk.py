"""Disk bandwidth as plain direct reads reach it: threads that read whole blocks by preadv, and nothing else."""

import os
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from smoe.offload.arena import Arena

Place = tuple[Path, int]
"""(file, offset); a page boundary."""

THREADS = (1, 2, 4)


def plain_rate(places: Sequence[Place], length: int, arena: Arena, num_threads: int) -> float:
    """Bytes/s of reading `length` bytes (whole pages) at each place past the page cache, round the arena's slots.

    Raises OSError where the file system takes no direct reads.
    """
    files = {path: os.open(path, os.O_RDONLY | os.O_DIRECT) for path, _ in places}
    todo: queue.SimpleQueue[tuple[int, Place]] = queue.SimpleQueue()
    for number, place in enumerate(places):
        todo.put((number % arena.num_slots, place))
    errors: list[OSError] = []

    def work() -> None:
        while True:
            try:
                slot, (path, start) = todo.get_nowait()
            except queue.Empty:
                return
            try:
                _read(files[path], start, arena.buffer(slot)[:length])
            except OSError as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=work) for _ in range(num_threads)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    for fd in files.values():
        os.close(fd)
    if errors:
        raise errors[0]
    return len(places) * length / seconds


def best_rates(places: Sequence[Place], length: int, arena: Arena, repeats: int) -> dict[int, list[float]]:
    """Bytes/s by number of threads, `repeats` of each, in turns."""
    rates: dict[int, list[float]] = {threads: [] for threads in THREADS}
    for _ in range(repeats):
        for threads, values in rates.items():
            values.append(plain_rate(places, length, arena, threads))
    return rates


def best(rates: dict[int, list[float]]) -> list[float]:
    """The rates of the number of threads with the highest median."""
    return max(rates.values(), key=median)


def _read(fd: int, start: int, buffer: memoryview) -> None:
    got = 0
    while got < len(buffer):
        count = os.preadv(fd, [buffer[got:]], start + got)
        if count == 0:
            raise OSError(f"the file ends {len(buffer) - got} bytes early")
        got += count
