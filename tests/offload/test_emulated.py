import time

import pytest
import torch

from smoe.core.errors import ConfigError, StoreError
from smoe.core.link_model import LinkModel
from smoe.offload.emulated import EmulatedStore
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


def test_errors_pass_through(tmp_path):
    files = ExpertFiles(tmp_path)
    bank = files.offloaded(torch.float32, 2, over=EmulatedStore(InstantStore(lambda read: True), LinkModel(1e12)))
    with pytest.raises(StoreError, match="refused"):
        apply(bank, random_calls(files, torch.float32, [1])[0])
    bank.close()
