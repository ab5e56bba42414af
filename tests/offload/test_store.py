import errno
import os
import queue

import pytest
import torch

import smoe.offload.files
from smoe.core.errors import StoreError
from smoe.core.pages import PAGE_BYTES
from smoe.kernels import alloc_huge
from smoe.offload.layout import plan_layout
from smoe.offload.slots import View
from smoe.offload.store import DiskStore, Read
from tests.offload.test_layout import Range

P = PAGE_BYTES


def pattern(nbytes, seed=0):
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def opened():
    stores = []

    def make(*layouts, **options):
        stores.append(DiskStore(layouts, **options))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def fetch(store, layout):
    """Slot memory after one read, and the read."""
    ended = queue.SimpleQueue()
    memory = alloc_huge(layout.room)
    store.submit(Read(layout, memory.numpy().data, View(0, 0, 0, 0), ended.put))
    return memory, ended.get()


def part(memory, layout, name):
    offset, nbytes = layout.parts[name]
    return memory[offset : offset + nbytes]


@pytest.mark.parametrize("chunk_bytes", [P, 3 * P, 1 << 20])
@pytest.mark.parametrize(
    "ranges",
    [
        [(0, 10)],
        [(0, P)],
        [(P - 1, 2)],
        [(5 * P + 17, 4 * P)],
        [(10 * P, 100)],
        [(10 * P + 99, 1)],
        [(0, 10 * P + 100)],
        [(3, P), (P + 3, 2 * P), (9 * P + 3, P + 97)],
    ],
    ids=["start", "page", "across", "shifted", "end", "last-byte", "whole", "parts"],
)
def test_reads_hold_the_bytes(tmp_path, opened, ranges, chunk_bytes):
    path = tmp_path / "weights"
    content = pattern(10 * P + 100)
    path.write_bytes(content.numpy().tobytes())
    layout = plan_layout({str(i): Range(str(path), *r) for i, r in enumerate(ranges)})
    store = opened(layout, chunk_bytes=chunk_bytes, num_threads=2)
    memory, read = fetch(store, layout)
    assert read.error is None
    for i, (offset, nbytes) in enumerate(ranges):
        assert torch.equal(part(memory, layout, str(i)), content[offset : offset + nbytes])
    stats = store.stats()
    assert (stats.reads, stats.bytes_read, stats.retries, stats.failures) == (1, layout.room, 0, 0)
    assert {*stats.direct_files, *stats.buffered_files} == {str(path)}


def refuse_direct_open(monkeypatch):
    real = os.open

    def opening(path, flags, *args):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct reads here")
        return real(path, flags, *args)

    monkeypatch.setattr(smoe.offload.files.os, "open", opening)


def refuse_direct_read(monkeypatch):
    import fcntl

    real = os.preadv

    def reading(fd, buffers, offset):
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "alignment")
        return real(fd, buffers, offset)

    monkeypatch.setattr(smoe.offload.files.os, "preadv", reading)


@pytest.mark.parametrize("refuse", [refuse_direct_open, refuse_direct_read])
def test_file_systems_without_direct_reads_are_read_buffered(tmp_path, opened, monkeypatch, refuse):
    path = tmp_path / "weights"
    content = pattern(3 * P + 5)
    path.write_bytes(content.numpy().tobytes())
    refuse(monkeypatch)
    layout = plan_layout({"x": Range(str(path), 7, 3 * P - 2)})
    store = opened(layout, num_threads=1, chunk_bytes=P)
    memory, read = fetch(store, layout)
    assert read.error is None
    assert torch.equal(part(memory, layout, "x"), content[7 : 3 * P + 5])
    assert store.stats().buffered_files == (str(path),)
    assert store.stats().retries == 0


class Faults:
    """os.preadv that misbehaves at the offsets in `plan`: an exception to raise, or bytes to return at most."""

    def __init__(self, monkeypatch, plan):
        self.plan, self.real, self.calls = plan, os.preadv, []
        monkeypatch.setattr(smoe.offload.files.os, "preadv", self)

    def __call__(self, fd, buffers, offset):
        self.calls.append(offset)
        faults = self.plan.get(offset, [])
        fault = faults.pop(0) if faults else None
        if isinstance(fault, Exception):
            raise fault
        if fault is not None:
            buffers = [buffers[0][:fault]]
            return self.real(fd, buffers, offset) if fault else 0
        return self.real(fd, buffers, offset)


@pytest.mark.parametrize("fault", [OSError(errno.EIO, "Input/output error"), 0], ids=["eio", "end"])
@pytest.mark.parametrize(("times", "fails"), [(1, False), (2, True)])
def test_a_fault_is_retried_once(tmp_path, opened, monkeypatch, fault, times, fails):
    path = tmp_path / "weights"
    content = pattern(4 * P)
    path.write_bytes(content.numpy().tobytes())
    layout = plan_layout({"x": Range(str(path), 0, 4 * P)})
    store = opened(layout, num_threads=2, chunk_bytes=P)
    Faults(monkeypatch, {2 * P: [fault] * times})
    memory, read = fetch(store, layout)
    assert store.stats().retries == 1
    if fails:
        assert isinstance(read.error, StoreError)
        assert str(read.error).startswith(f"{path}: reading {P} bytes at offset {2 * P}: ")
        assert store.stats().failures == 1
    else:
        assert read.error is None
        assert torch.equal(part(memory, layout, "x"), content)


def test_a_read_that_comes_in_pieces_is_continued(tmp_path, opened, monkeypatch):
    path = tmp_path / "weights"
    content = pattern(4 * P)
    path.write_bytes(content.numpy().tobytes())
    layout = plan_layout({"x": Range(str(path), 0, 4 * P)})
    store = opened(layout, num_threads=1)
    faults = Faults(monkeypatch, {0: [P], P: [2 * P]})
    memory, read = fetch(store, layout)
    assert read.error is None
    assert faults.calls == [0, P, 3 * P]
    assert store.stats().retries == 0
    assert torch.equal(part(memory, layout, "x"), content)


def test_a_file_shortened_while_running(tmp_path, opened):
    path = tmp_path / "weights"
    path.write_bytes(bytes(4 * P))
    layout = plan_layout({"x": Range(str(path), 2 * P, 2 * P)})
    store = opened(layout)
    os.truncate(path, 3 * P)
    _, read = fetch(store, layout)
    assert isinstance(read.error, StoreError)
    assert str(read.error) == (
        f"{path}: reading {2 * P} bytes at offset {2 * P}: "
        f"the file changed since it was opened: {4 * P} to {3 * P} bytes"
    )


def test_a_file_rewritten_in_place(tmp_path, opened):
    path = tmp_path / "weights"
    path.write_bytes(bytes(P))
    layout = plan_layout({"x": Range(str(path), 0, P)})
    store = opened(layout)
    opened_ns = os.stat(path).st_mtime_ns
    with open(path, "r+b") as file:
        file.write(b"other")
    os.utime(path, ns=(opened_ns + 1, opened_ns + 1))
    _, read = fetch(store, layout)
    assert isinstance(read.error, StoreError)
    assert "rewritten in place" in str(read.error)


def test_another_file_renamed_over_it_changes_nothing(tmp_path, opened):
    path = tmp_path / "weights"
    content = pattern(P)
    path.write_bytes(content.numpy().tobytes())
    layout = plan_layout({"x": Range(str(path), 0, P)})
    store = opened(layout)
    (tmp_path / "new").write_bytes(b"short")
    os.replace(tmp_path / "new", path)
    memory, read = fetch(store, layout)
    assert read.error is None
    assert torch.equal(part(memory, layout, "x"), content)


def test_a_file_too_short_or_absent_at_the_start(tmp_path):
    path = tmp_path / "weights"
    layout = plan_layout({"x": Range(str(path), 0, P)})
    with pytest.raises(StoreError, match=f"^{path}: No such file or directory$"):
        DiskStore([layout])
    path.write_bytes(bytes(10))
    with pytest.raises(StoreError, match=f"^{path}: has 10 bytes, expert weights need {P}$"):
        DiskStore([layout])


def test_close_is_idempotent_and_ends_what_was_begun(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(64 * P))
    layout = plan_layout({"x": Range(str(path), 0, 64 * P)})
    store = DiskStore([layout], chunk_bytes=P, num_threads=3)
    ended = queue.SimpleQueue()
    memory = alloc_huge(layout.room)
    for _ in range(5):
        store.submit(Read(layout, memory.numpy().data, View(0, 0, 0, 0), ended.put))
    store.close()
    store.close()
    assert [ended.get_nowait().error for _ in range(5)] == [None] * 5
