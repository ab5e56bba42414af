"""How fast experts get from host memory into slots on the device, and how much of that hides behind computing."""

import time
from collections.abc import Callable
from statistics import median

import torch

from smoe.bench.result import Figure, Result
from smoe.kernels import alloc_huge
from smoe.offload.cuda_copies import CudaCopies, Pinned
from smoe.offload.layout import SlotLayout
from smoe.offload.slots import View
from smoe.offload.store import Read

NUM_SLOTS, SLOT_BYTES, REPEATS = 8, 32 << 20, 10
LAYOUT = SlotLayout((), {}, SLOT_BYTES)


def measure(device: torch.device, result: Result) -> None:
    """Eight experts of 32 MiB from pinned memory, beside matrix products that take about as long."""
    slots = torch.empty(NUM_SLOTS, SLOT_BYTES, dtype=torch.uint8, device=device)
    copies, host = CudaCopies(slots), alloc_huge(NUM_SLOTS * SLOT_BYTES)
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)

    def copy() -> None:
        begun = []
        for slot in range(NUM_SLOTS):
            read = Read(LAYOUT, memoryview(b""), View(0, slot, slot, 0), lambda read: None)
            begun.append(copies.begin(read, 0, host[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]))
        for one in begun:
            one.wait()

    def compute() -> None:
        for _ in range(4):
            a.mm(a)

    def both() -> None:
        compute()
        copy()

    with Pinned(host):
        copy_s, compute_s, both_s = _seconds(copy), _seconds(compute), _seconds(both)
    hidden = (copy_s + compute_s - both_s) / min(copy_s, compute_s)
    result.samples["copy_overlap_s"] = {"copy": copy_s, "compute": compute_s, "both": both_s}
    result.add(Figure(figure="pinned host to device", value=host.nbytes / copy_s / 1e9, unit="GB/s"))
    result.add(Figure(figure="copy hidden behind compute", value=100 * hidden, unit="%", bound="of the shorter one"))


def _seconds(work: Callable[[], object]) -> float:
    """Median time of one call until the device is done, after two that warm up."""
    times = []
    for _ in range(REPEATS + 2):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return median(times[2:])
