"""How many threads read experts, and in what pieces: measured once on each disk of each host, and kept.

The file is `smoe/readahead.json` under $XDG_CACHE_HOME (~/.cache); deleting it measures again.
"""

import json
import os
import platform
import queue
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from smoe.core.cache_root import cache_root
from smoe.core.errors import StoreError
from smoe.offload.arena import Arena
from smoe.offload.layout import SlotLayout
from smoe.offload.slots import View
from smoe.offload.store import DEFAULT_CHUNK_BYTES, DEFAULT_THREADS, DiskStore, Read

MEASURED_FROM_BYTES = 1 << 30
"""Experts that are less than this altogether are read with the defaults: measuring would take longer than it saves."""
SETTINGS = ((DEFAULT_THREADS, DEFAULT_CHUNK_BYTES), (2, 4 << 20), (4, 1 << 20), (8, 1 << 20), (8, 4 << 20))
SETTING_S = 0.15
IN_FLIGHT = 4
WORTH = 1.05
"""A setting other than the default must be this much faster: less is noise."""


@dataclass(frozen=True, slots=True)
class Readahead:
    """`bytes_per_s` is what was reached; 0 for the defaults, which are taken unmeasured."""

    num_threads: int
    chunk_bytes: int
    bytes_per_s: float
    source: Literal["measured", "kept", "default"]

    def __str__(self) -> str:
        what = f"{self.num_threads} threads, pieces of {self.chunk_bytes >> 10} KiB"
        return f"{what} ({self.source}{f', {self.bytes_per_s / 1e9:.2f} GB/s' if self.bytes_per_s else ''})"


DEFAULT = Readahead(DEFAULT_THREADS, DEFAULT_CHUNK_BYTES, 0.0, "default")


def measured_readahead(layouts: Sequence[SlotLayout], *, threshold_bytes: int = MEASURED_FROM_BYTES) -> Readahead:
    """For the disk of the first file. Takes under a second, the first time. Failing to measure or to keep the result is
    no error: the defaults are taken, or it is measured again next time."""
    if sum(layout.room for layout in layouts) < threshold_bytes:
        return DEFAULT
    path = cache_file()
    try:
        disk = _disk(layouts[0].segments[0].path)
    except OSError:
        return DEFAULT  # opening it for good will say why
    kept = _read(path)
    if disk in kept:
        return kept[disk]
    try:
        found = _sweep(layouts)
    except (StoreError, OSError):
        return DEFAULT
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({key: asdict(value) for key, value in {**kept, disk: found}.items()}, indent=1))
        partial.replace(path)
    except OSError:
        return found
    return found


def known_readahead(place: str | Path) -> Readahead:
    """For the disk of a file or folder, without measuring: what was kept for it on this host, else the defaults.

    Raises OSError where there is no such place.
    """
    return _read(cache_file()).get(_disk(place), DEFAULT)


def _disk(place: str | Path) -> str:
    return f"{platform.node()}:{os.stat(place).st_dev}"


def cache_file() -> Path:
    return cache_root() / "readahead.json"


def _read(path: Path) -> dict[str, Readahead]:
    """By disk; nothing where the file is none, or not ours."""
    try:
        return {
            disk: Readahead(int(e["num_threads"]), int(e["chunk_bytes"]), float(e["bytes_per_s"]), "kept")
            for disk, e in json.loads(path.read_text()).items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _sweep(layouts: Sequence[SlotLayout]) -> Readahead:
    rates = {setting: _rate(layouts, *setting) for setting in SETTINGS}
    best = max(rates, key=lambda setting: rates[setting] * (WORTH if setting == SETTINGS[0] else 1.0))
    return Readahead(*best, rates[best], "measured")


def _rate(layouts: Sequence[SlotLayout], num_threads: int, chunk_bytes: int) -> float:
    """Bytes/s of whole experts in random order, IN_FLIGHT at a time, for SETTING_S."""
    chance, ended = random.Random(0), queue.SimpleQueue[Read]()
    arena = Arena(IN_FLIGHT, max(layout.room for layout in layouts))
    store = DiskStore(layouts, num_threads=num_threads, chunk_bytes=chunk_bytes)
    try:
        for slot in range(IN_FLIGHT):
            arena.tensor(slot).zero_()
            store.submit(Read(chance.choice(layouts), arena.buffer(slot), View(0, 0, slot, 0), ended.put))
        began, left = time.perf_counter(), IN_FLIGHT
        while left:
            read = ended.get()
            if read.error is not None:
                raise read.error
            if time.perf_counter() - began < SETTING_S:
                store.submit(Read(chance.choice(layouts), read.memory, read.view, ended.put))
            else:
                left -= 1
        return store.stats().bytes_read / (time.perf_counter() - began)
    finally:
        store.close()
