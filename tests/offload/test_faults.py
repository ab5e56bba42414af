"""Files that change and disks that are slow while a bank runs, on the disk alone and behind host memory."""

import os
import re

import pytest
import torch

from smoe.core.errors import StoreError
from smoe.core.expert_tier import ExpertTier
from smoe.core.link_model import LinkModel
from smoe.offload.bank import OffloadedBank
from smoe.offload.emulated import EmulatedStore
from smoe.offload.host import HostMemory
from smoe.offload.host_store import HostStore
from smoe.offload.policies.catalog import Geometry
from smoe.offload.policies.spec import parse_policies
from smoe.offload.shelf import Shelf, SlotForm
from smoe.offload.store import DiskStore, Store
from smoe.offload.tiers import open_tiers, plan_tiers
from tests.offload.support import Call, ExpertFiles, apply, random_calls

DTYPE = torch.float32
SLOW = LinkModel(1e12, latency_s=5e-3)


def over(files: ExpertFiles, shelf: Shelf, store: Store, policies: str = "", slots: int = 2) -> OffloadedBank:
    geometry = Geometry(layers=files.moe_layers, num_experts=files.num_experts, top_k=files.top_k)
    built, num_slots = parse_policies(policies).build(geometry), slots * len(files.moe_layers)
    return OffloadedBank(shelf, store, built, num_slots=num_slots, floor=slots, pause_share=0.6, poison=True)


def tiered(files: ExpertFiles, tier: str) -> OffloadedBank:
    plan = plan_tiers(Shelf(files.spec, files.source, DTYPE), ExpertTier.parse(tier))
    return over(files, plan.above, open_tiers(plan, poison=True)[0])


def slow(files: ExpertFiles, host_slots: int, policies: str, *, slots: int) -> OffloadedBank:
    """Over a disk that takes 5 ms more for each read."""
    shelf = Shelf(files.spec, files.source, DTYPE)
    disk = EmulatedStore(DiskStore(shelf.layouts), SLOW)
    if not host_slots:
        return over(files, shelf, disk, policies, slots)
    memory = HostMemory(shelf, host_slots * len(files.moe_layers), poison=True)
    return over(files, SlotForm(shelf), HostStore(shelf, memory, disk), policies, slots)


def call_of(files: ExpertFiles, layer: int, experts: list[int], seed: int = 0) -> Call:
    generator = torch.Generator().manual_seed(seed)
    x_TD, residual_TD = torch.randn(2, 1, files.hidden, generator=generator)
    ids_TK = torch.tensor([experts], dtype=torch.int32)
    return Call(layer, x_TD, ids_TK, torch.rand(ids_TK.shape, generator=generator), residual_TD)


@pytest.mark.parametrize("tier", ["disk", "host:200kB"])
@pytest.mark.parametrize("how", ["shortened", "rewritten"])
def test_a_file_that_changes_fails_what_needs_it_alone(tmp_path, tier, how) -> None:
    files = ExpertFiles(tmp_path, one_file=False, top_k=2)
    resident, bank = files.resident(DTYPE), tiered(files, tier)
    good, bad = call_of(files, 2, [0, 1]), call_of(files, 1, [3, 4])
    expected = apply(resident, good)
    assert torch.equal(apply(bank, good), expected)
    path = tmp_path / "1-up.bin"
    if how == "shortened":
        os.truncate(path, 100)
    else:
        with open(path, "r+b") as file:
            file.write(b"\0")
        os.utime(path, ns=(0, 1))
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            apply(bank, bad)
        message = rf"{path}: reading \d+ bytes at offset \d+: the file changed since it was opened"
        assert re.match(message, str(caught.value))
        bank.check_integrity()
        for call in (good, call_of(files, 2, [4, 5]), call_of(files, 4, [1, 6])):
            assert torch.equal(apply(bank, call), apply(resident, call))
    stats = bank._store.stats()
    assert stats.failures >= 2
    assert stats.retries >= 2
    bank.close()


@pytest.mark.parametrize("tier", ["disk", "host:100kB", "host"])
def test_a_file_replaced_is_read_as_it_was(tmp_path, tier) -> None:
    files = ExpertFiles(tmp_path)
    resident, bank = files.resident(DTYPE), tiered(files, tier)
    calls = random_calls(files, DTYPE, [1, 4, 2])
    expected = [apply(resident, call) for call in calls]
    assert torch.equal(apply(bank, calls[0]), expected[0])
    new = tmp_path / "new"
    new.write_bytes(b"\0" * files.paths()[0].stat().st_size)
    os.replace(new, files.paths()[0])
    for call, out in zip(calls, expected, strict=True):
        assert torch.equal(apply(bank, call), out)
    bank.close()


def test_all_in_host_memory_needs_no_file(tmp_path) -> None:
    files = ExpertFiles(tmp_path)
    resident, bank = files.resident(DTYPE), tiered(files, "host")
    os.truncate(files.paths()[0], 10)
    for call in random_calls(files, DTYPE, [1, 4, 2]):
        assert torch.equal(apply(bank, call), apply(resident, call))
    bank.close()


def forwards(files: ExpertFiles, experts_of) -> list[Call]:
    return [call_of(files, layer, experts_of(i, layer), seed=i) for i in range(40) for layer in files.moe_layers]


def run(files: ExpertFiles, bank: OffloadedBank, calls: list[Call]) -> None:
    resident = files.resident(DTYPE)
    for index, call in enumerate(calls):
        if index % len(files.moe_layers) == 0:
            bank.begin_forward(torch.tensor([index]))
        assert torch.equal(apply(bank, call), apply(resident, call))
    bank.check_integrity()


@pytest.mark.parametrize("host_slots", [0, 3])
def test_prefetches_over_a_slow_disk_are_late(tmp_path, host_slots) -> None:
    """Routes repeat exactly, so every prefetch is right; computing takes far less than the 5 ms of a read."""
    files = ExpertFiles(tmp_path, num_experts=8, top_k=2, moe_layers=(1, 2))
    bank = slow(files, host_slots, "evict=lru,prefetch=follow", slots=2)
    run(files, bank, forwards(files, lambda i, layer: [2 * (i % 4), 2 * (i % 4) + 1]))
    stats = bank.stats()
    assert stats.late > 0
    assert stats.prefetched >= stats.late
    assert stats.prefetch_pauses == 0
    bank.close()


@pytest.mark.parametrize("host_slots", [0, 3])
def test_prefetching_that_does_not_pay_pauses(tmp_path, host_slots) -> None:
    """No route ever comes again the way it was, so what is fetched ahead is of no use."""
    files = ExpertFiles(tmp_path, num_experts=40, top_k=2, moe_layers=(1, 2))
    bank = slow(files, host_slots, "evict=lru,prefetch=follow", slots=6)
    chance = torch.Generator().manual_seed(1)
    routes = [torch.randperm(40, generator=chance)[:2].tolist() for _ in range(400)]
    run(files, bank, [call_of(files, 1 + i % 2, experts, seed=i) for i, experts in enumerate(routes)])
    stats = bank.stats()
    assert stats.prefetch_pauses > 0
    assert stats.wasted > stats.prefetch_used + stats.late
    bank.close()
