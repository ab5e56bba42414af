"""Bandwidth of the expert store against plain direct reads of the same file, interleaved in one run.

    python benchmarks/disk_read.py [--folder DIR] [--expert-bytes 12582912] [--experts 128] [--repeats 5]

Plain: threads that read whole experts by preadv, nothing else. Store: DiskStore, with one expert in flight (what a
decode step with a single miss sees) and with eight. Both go round the same slots, whose memory was touched before:
reading again and again into one buffer is faster than any cache of experts can be. The order of experts is random,
the file is on the folder's disk and is deleted at the end. Writes benchmarks/results/disk_read.json.
"""

import argparse
import os
import queue
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from smoe.bench.disk import plain_rate
from smoe.bench.result import Figure, Result, print_figures
from smoe.offload.arena import Arena
from smoe.offload.cache import View
from smoe.offload.layout import PAGE_BYTES, SlotLayout, plan_layout
from smoe.offload.store import DEFAULT_CHUNK_BYTES, DEFAULT_THREADS, DiskStore, Read

GOAL = 0.85
HEADER_BYTES = 1000  # experts of a safetensors file start at no page boundary
PLAIN_THREADS = (1, 2, 4, 8)
IN_FLIGHT = (1, 8)
NUM_SLOTS = 32


class Range:
    def __init__(self, path: Path, offset: int, nbytes: int) -> None:
        self.path, self.offset, self.nbytes = str(path), offset, nbytes


def write_file(path: Path, nbytes: int) -> None:
    piece = os.urandom(1 << 24)
    with open(path, "wb") as file:
        for start in range(0, nbytes, len(piece)):
            file.write(piece[: nbytes - start])
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def store_gbps(layouts: list[SlotLayout], order: list[int], arena: Arena, in_flight: int) -> float:
    """Bytes that the layouts ask for, without the rounding to pages, so that the rounding counts as a loss."""
    store = DiskStore(layouts)
    ended: queue.SimpleQueue[Read] = queue.SimpleQueue()
    free, todo = deque(range(arena.num_slots)), deque(order)

    def submit() -> None:
        index, slot = todo.popleft(), free.popleft()
        store.submit(Read(layouts[index], arena.buffer(slot), View(0, index, slot, 0), ended.put))

    began = time.perf_counter()
    for _ in range(in_flight):
        submit()
    for _ in order:
        read = ended.get()
        if read.error is not None:
            raise read.error
        free.append(read.view.slot)
        if todo:
            submit()
    seconds = time.perf_counter() - began
    store.close()
    wanted = sum(sum(nbytes for _, nbytes in layouts[index].parts.values()) for index in order)
    return wanted / seconds / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--expert-bytes", type=int, default=3 * 2048 * 1024 * 2)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    result = Result(
        name="disk_read",
        config={
            "expert_bytes": args.expert_bytes,
            "experts": args.experts,
            "repeats": args.repeats,
            "seed": args.seed,
            "store_threads": DEFAULT_THREADS,
            "store_chunk_bytes": DEFAULT_CHUNK_BYTES,
        },
    )
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="disk-read-") as folder:
        path = Path(folder) / "experts"
        write_file(path, HEADER_BYTES + args.experts * args.expert_bytes)
        samples = measure(path, args.expert_bytes, args.experts, args.repeats, args.seed)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    result.samples = {f"{name}_gbps": values for name, values in samples.items()}
    best = max((name for name in medians if name.startswith("plain")), key=lambda name: medians[name])
    for name, value in medians.items():
        spread = f"{min(samples[name]):.2f} to {max(samples[name]):.2f} GB/s"
        result.add(Figure(figure=name, value=value, unit="GB/s", bound=spread))
    for in_flight in IN_FLIGHT:
        ratio = medians[f"store_{in_flight}_in_flight"] / medians[best]
        figure = f"store, {in_flight} in flight / best plain ({best})"
        result.add(Figure(figure=figure, value=ratio, unit="", goal=f"{GOAL:g}", met=ratio >= GOAL))
    print_figures(result.summary, f"direct reads of {args.expert_bytes / 1e6:.1f} MB experts")
    print(result.write(Path(__file__).parent / "results"))


def measure(path: Path, nbytes: int, experts: int, repeats: int, seed: int) -> dict[str, list[float]]:
    layouts = [plan_layout({"w": Range(path, HEADER_BYTES + i * nbytes, nbytes)}) for i in range(experts)]
    pages = nbytes // PAGE_BYTES * PAGE_BYTES
    arena = Arena(NUM_SLOTS, max(layout.room for layout in layouts), poison=True)  # touches its pages
    runs: dict[str, Callable[[list[int]], float]] = {}
    for num_threads in PLAIN_THREADS:
        runs[f"plain_{num_threads}_threads"] = lambda order, n=num_threads: (
            plain_rate([(path, i * nbytes // PAGE_BYTES * PAGE_BYTES) for i in order], pages, arena, n) / 1e9
        )
    for in_flight in IN_FLIGHT:
        runs[f"store_{in_flight}_in_flight"] = lambda order, n=in_flight: store_gbps(layouts, order, arena, n)
    samples: dict[str, list[float]] = {name: [] for name in runs}
    chance = random.Random(seed)
    for _ in range(repeats):
        order = chance.sample(range(experts), experts)
        for name, run in runs.items():
            samples[name].append(run(order))
    return samples


if __name__ == "__main__":
    main()
