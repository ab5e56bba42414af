"""Memory read bandwidth as a plain reduction over a large buffer reaches it."""

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


def typical(rates: list[float]) -> float:
    return median(rates)
