import queue
import time

import pytest
import torch

from smoe.core.errors import ConfigError, StoreError
from smoe.core.link_model import LinkModel
from smoe.kernels import alloc_huge
from smoe.offload.emulated import EmulatedStore
from smoe.offload.host import HostMemory
from smoe.offload.host_store import HostStore
from smoe.offload.shelf import Shelf, SlotForm
from smoe.offload.slots import View
from smoe.offload.store import DiskStore, Read
from tests.offload.stores import InstantStore
from tests.offload.support import ExpertFiles, apply, random_calls


@pytest.mark.parametrize(
    ("text", "bytes_per_s", "latency_s"),
    [("2GB/s", 2e9, 0), ("500 MB/s + 1ms", 5e8, 1e-3), (".5GiB/s+20us", 2**29, 2e-5), ("1e3B/s", None, None)],
)
def test_a_link_in_words(text, bytes_per_s, latency_s):
    if bytes_per_s is None:
        with pytest.raises(ConfigError, match=r"link: '1e3B/s' \(bandwidth and perhaps latency, as 2GB/s"):
            LinkModel.parse(text)
    else:
        found = LinkModel.parse(text)
        assert (found.bytes_per_s, found.latency_s) == pytest.approx((bytes_per_s, latency_s))


@pytest.mark.parametrize("text", ["0GB/s", "fast", "2GB", "-1GB/s", "1GB/s+", "1GB/s+1h", "nanGB/s"])
def test_no_link(text):
    with pytest.raises(ConfigError, match="bandwidth and perhaps latency"):
        LinkModel.parse(text)


def test_transfers_take_their_time_and_nothing_else_changes(tmp_path):
    files = ExpertFiles(tmp_path)
    store = EmulatedStore(InstantStore(), LinkModel(1e9, latency_s=2e-3))
    bank = files.offloaded(torch.float32, 2, over=store)
    resident = files.resident(torch.float32)
    began = time.monotonic()
    for call in random_calls(files, torch.float32, [1, 4]):
        assert torch.equal(apply(bank, call), apply(resident, call))
    took = time.monotonic() - began
    stats = bank.stats()
    assert took >= stats.misses * 2e-3
    assert took >= stats.transfer_s >= stats.misses * 2e-3
    bank.check_integrity()
    bank.close()
    bank.close()


def test_over_host_memory_the_link_into_the_slots_is_the_slow_one(tmp_path):
    files = ExpertFiles(tmp_path)
    shelf = Shelf(files.spec, files.source, torch.float32)
    below = HostStore(shelf, HostMemory(shelf, 9), DiskStore(shelf.layouts))
    store, ended = EmulatedStore(below, LinkModel(1e12, latency_s=2e-3)), queue.SimpleQueue()
    layout, memory = SlotForm(shelf).layout(1, 2), alloc_huge(shelf.slot_bytes).numpy().data
    for _ in range(3):
        store.submit(Read(layout, memory, View(1, 2, 0, 0), ended.put))
        assert ended.get().error is None
    disk, host = store.stats().links
    assert (disk.emulated, host.emulated) == (False, True)
    assert (disk.transfers, host.transfers) == (1, 3)
    assert host.busy_s == store.stats().busy_s >= 3 * 2e-3
    store.close()


def test_errors_pass_through(tmp_path):
    files = ExpertFiles(tmp_path)
    bank = files.offloaded(torch.float32, 2, over=EmulatedStore(InstantStore(lambda read: True), LinkModel(1e12)))
    with pytest.raises(StoreError, match="refused"):
        apply(bank, random_calls(files, torch.float32, [1])[0])
    bank.close()
