"""Copies from host memory into slots on a CUDA device: the bytes, and the order of uses and copies of a slot."""

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from smoe.offload.cuda_copies import CudaCopies
from smoe.offload.host import HostMemory
from smoe.offload.host_store import HostStore, fill_all
from smoe.offload.shelf import Shelf, SlotForm
from smoe.offload.slots import View
from smoe.offload.store import DiskStore, Read
from tests.offload.support import ExpertFiles

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
NUM_SLOTS = 3
NOWHERE = memoryview(bytearray())  # a slot on a device has no address here


class Device:
    """All experts in pinned host memory, or `host_slots` of them before the disk, and a few slots on the device."""

    def __init__(self, files: ExpertFiles, host_slots: int | None = None) -> None:
        shelf = Shelf(files.spec, files.source, torch.bfloat16)
        self.above = SlotForm(shelf)
        self.memory = HostMemory(shelf, shelf.num_experts if host_slots is None else host_slots)
        disk = DiskStore(shelf.layouts)
        if host_slots is None:
            fill_all(shelf, self.memory, disk)
            disk.close()
        self.slots = torch.zeros(NUM_SLOTS, shelf.slot_bytes, dtype=torch.uint8, device="cuda")
        self.copies = CudaCopies(self.slots)
        self.store = HostStore(shelf, self.memory, None if host_slots is None else disk, self.copies)
        self.ended: queue.SimpleQueue[Read] = queue.SimpleQueue()

    def begin(self, layer: int, expert: int, slot: int) -> None:
        view = View(layer, expert, slot, 0)
        self.store.submit(Read(self.above.layout(layer, expert), NOWHERE, view, self.ended.put))

    def expected(self, layer: int, expert: int) -> torch.Tensor:
        self.memory.hold(layer, [expert])
        slot = self.memory.arena.tensor(int(self.memory.expert2slot(layer)[expert]))
        self.memory.release()
        return slot[: self.above.layout(layer, expert).room].clone()


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    made = Device(ExpertFiles(tmp_path, hidden=400, ffn=240))
    yield made
    torch.cuda.synchronize()
    made.store.close()


def test_host_memory_is_pinned_as_long_as_the_store_is_open(device: Device) -> None:
    assert device.memory.arena.whole.is_pinned()
    assert device.memory.arena.tensor(3).is_pinned()
    device.store.close()
    assert not device.memory.arena.whole.is_pinned()


def test_through_little_host_memory_everything_arrives(tmp_path: Path) -> None:
    """More at a time than host memory has slots: those beyond wait for one."""
    files = ExpertFiles(tmp_path, hidden=400, ffn=240)
    whole, little = Device(files), Device(files, host_slots=len(files.moe_layers))
    for first in range(0, files.num_experts, NUM_SLOTS):
        experts = range(first, min(first + NUM_SLOTS, files.num_experts))
        for slot, expert in enumerate(experts):
            little.begin(2, expert, slot)
        for _ in experts:
            assert little.ended.get().error is None
        for slot, expert in enumerate(experts):
            expected = whole.expected(2, expert)
            assert torch.equal(little.slots[slot, : len(expected)].cpu(), expected)
    little.store.close()
    whole.store.close()


def test_bytes_arrive(device: Device) -> None:
    for layer, expert, slot in ((1, 0, 2), (2, 6, 0), (4, 3, 2)):
        device.begin(layer, expert, slot)
        assert device.ended.get().error is None
        expected = device.expected(layer, expert)
        assert torch.equal(device.slots[slot, : len(expected)].cpu(), expected)


def test_a_slot_is_overwritten_after_its_last_use(device: Device) -> None:
    device.begin(1, 0, 1)
    device.ended.get()
    before = device.expected(1, 0)
    work = torch.randn(4096, 4096, device="cuda")
    for _ in range(30):
        work = work @ work / 64
    seen = device.slots[1].clone()  # behind all that work
    device.copies.used(1)
    device.begin(2, 5, 1)
    assert device.ended.get().error is None
    assert torch.equal(seen[: len(before)].cpu(), before)
    after = device.expected(2, 5)
    assert torch.equal(device.slots[1, : len(after)].cpu(), after)


def test_copies_into_other_slots_do_not_wait(device: Device) -> None:
    work = torch.randn(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    for _ in range(100):
        work = work @ work / 90
    ended = torch.cuda.Event()
    ended.record()
    device.copies.used(0)
    device.begin(1, 2, 1)
    assert device.ended.get().error is None
    assert not ended.query()
