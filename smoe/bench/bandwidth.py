"""Memory bandwidth: reading, as a plain reduction over a large buffer reaches it, and copying experts."""

import time
from statistics import median

import torch


def read_bandwidth(num_bytes: int = 1 << 30, repeats: int = 7) -> list[float]:
    """Bytes/s of `repeats` sums over an fp32 buffer of `num_bytes` (larger than the caches), all torch threads."""
    buffer = torch.ones(num_bytes // 4, dtype=torch.float32)
    rates = []
    for _ in range(repeats):
        start = time.perf_counter()
        buffer.sum()
        rates.append(num_bytes / (time.perf_counter() - start))
    return rates


def copy_bandwidth(piece_bytes: int, num_bytes: int = 256 << 20, repeats: int = 3) -> list[float]:
    """Bytes/s of `repeats` times copying `num_bytes` in pieces as experts are copied from host memory into slots."""
    from smoe.kernels import alloc_huge
    from smoe.offload.copies import MemoryCopies
    from smoe.offload.layout import SlotLayout
    from smoe.offload.slots import View
    from smoe.offload.store import Read

    count = max(2, num_bytes // piece_bytes)
    source, slots, copies = alloc_huge(count * piece_bytes), alloc_huge(count * piece_bytes), MemoryCopies()
    layout, memory = SlotLayout((), {}, piece_bytes), slots.numpy().data
    reads = [
        Read(layout, memory[i * piece_bytes : (i + 1) * piece_bytes], View(0, i, i, 0), lambda read: None)
        for i in range(count)
    ]
    source.fill_(1)
    slots.fill_(0)
    rates = []
    for _ in range(repeats):
        began = time.perf_counter()
        for index, read in enumerate(reads):
            whole = source[index * piece_bytes : (index + 1) * piece_bytes]
            for start in range(0, piece_bytes, copies.chunk_bytes):
                copies.begin(read, start, whole[start : start + copies.chunk_bytes]).wait()
        rates.append(count * piece_bytes / (time.perf_counter() - began))
    return rates


def typical(rates: list[float]) -> float:
    return median(rates)
