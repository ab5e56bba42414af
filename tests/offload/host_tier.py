"""Host memory in front of a store, for tests: one read at a time, and copies that are late or noted."""

import queue
import threading
from contextlib import contextmanager
from functools import partial

import torch

from smoe.kernels import alloc_huge
from smoe.offload.bank import OffloadedBank
from smoe.offload.copies import MemoryCopies
from smoe.offload.host import HostMemory
from smoe.offload.host_store import HostStore
from smoe.offload.policies.catalog import Geometry
from smoe.offload.policies.spec import parse_policies
from smoe.offload.shelf import Shelf, SlotForm
from smoe.offload.slots import View
from smoe.offload.store import Read
from tests.offload.support import ExpertFiles


class Tier:
    """A HostStore of `slots` a layer over `below`, and reads of it one at a time."""

    def __init__(self, files: ExpertFiles, slots: int, below, *, dtype=torch.bfloat16, copies=None):
        self.shelf = Shelf(files.spec, files.source, dtype)
        self.above = SlotForm(self.shelf)
        self.memory = HostMemory(self.shelf, slots * len(files.moe_layers), poison=True)
        self.store = HostStore(self.shelf, self.memory, below, copies)
        self.ended: queue.SimpleQueue[Read] = queue.SimpleQueue()

    def begin(self, layer: int, expert: int, *, urgent: bool = True) -> torch.Tensor:
        slot = alloc_huge(self.above.slot_bytes)
        read = Read(self.above.layout(layer, expert), slot.numpy().data, View(layer, expert, 0, 0), self.ended.put)
        read.urgent = urgent
        self.store.submit(read)
        return slot

    def fetch(self, layer: int, expert: int):
        """Its tensors, after one read. Raises the read's error."""
        slot = self.begin(layer, expert)
        read = self.ended.get()
        if read.error is not None:
            raise read.error
        return self.above.view(layer, expert, slot)

    def close(self) -> None:
        self.memory.check_integrity()
        self.store.close()


def expected(files: ExpertFiles, dtype: torch.dtype, layer: int, expert: int):
    bank = files.resident(dtype)
    return bank._tables[layer].tensors(expert)


def same(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))


def bank_over(
    files: ExpertFiles, store: HostStore, shelf: Shelf, copies=None, *, policy="evict=random,prefetch=follow", slots=2
) -> OffloadedBank:
    geometry = Geometry(layers=files.moe_layers, num_experts=files.num_experts, top_k=files.top_k)
    policies = parse_policies(policy).build(geometry)
    num_slots = slots * len(files.moe_layers)
    return OffloadedBank(shelf, store, policies, num_slots=num_slots, floor=slots, copies=copies, poison=True)


class SteppedCopies(MemoryCopies):
    """Copies of two pages each, noted; the first one of all waits until `go` is set."""

    chunk_bytes, small_bytes = 2 * 4096, 0

    def __init__(self) -> None:
        self.began, self.go, self.copied = threading.Event(), threading.Event(), []

    def begin(self, read, start, source):
        self.began.set()
        assert self.go.wait(10)
        self.copied.append((*read.view[:2], start))
        return super().begin(read, start, source)


class DelayedCopies(MemoryCopies):
    """Nothing is copied before somebody waits for it, and then not before `go` is set."""

    chunk_bytes, small_bytes = 4096, 0

    def __init__(self) -> None:
        self.began, self.go = threading.Event(), threading.Event()

    def begin(self, read, start, source):
        return _Delayed(self, partial(super().begin, read, start, source))


class _Delayed:
    def __init__(self, engine, copy) -> None:
        self._engine, self._copy = engine, copy

    def wait(self) -> None:
        self._engine.began.set()
        assert self._engine.go.wait(10)
        self._copy()


class DeviceCopies(DelayedCopies):
    """As if slots were on a device: nothing but copies reaches them, host memory is locked, and uses are noted."""

    reaches_slots = False

    def __init__(self) -> None:
        super().__init__()
        self.go.set()
        self.locks: list[tuple[str, int]] = []
        self.log: list[tuple[str, int]] = []

    @contextmanager
    def locked(self, memory):
        self.locks.append(("locked", memory.nbytes))
        yield
        assert not (memory == 0).all()  # not given back yet
        self.locks.append(("let go", memory.nbytes))

    def used(self, slot):
        self.log.append(("used", slot))

    def begin(self, read, start, source):
        self.log.append(("copy", read.view.slot))
        return super().begin(read, start, source)
