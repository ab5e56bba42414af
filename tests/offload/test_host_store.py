"""Experts through host memory: copies, misses, evictions, failures and what is held."""

import random
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from smoe.core.errors import StoreError
from smoe.kernels import moe_pairs
from smoe.offload.host import HostMemory
from smoe.offload.host_store import HostStore, fill_all
from smoe.offload.shelf import Shelf, SlotForm
from smoe.offload.store import DiskStore
from tests.offload.host_tier import DelayedCopies, DeviceCopies, SteppedCopies, Tier, bank_over, expected, same
from tests.offload.stores import GatedStore, InstantStore, ShuffledStore
from tests.offload.support import ExpertFiles, apply, random_calls

DTYPES = [torch.bfloat16, torch.float32]
FP16 = torch.float16  # no kernels for it: experts are converted


@pytest.fixture
def files(tmp_path: Path) -> ExpertFiles:
    return ExpertFiles(tmp_path)


@pytest.mark.parametrize("stored", [torch.bfloat16, FP16], ids=str)
def test_a_miss_is_read_once_and_then_copied(tmp_path: Path, stored: torch.dtype) -> None:
    files = ExpertFiles(tmp_path, stored=stored)
    below = InstantStore()
    tier = Tier(files, 3, below)
    for _ in range(3):
        assert same(tier.fetch(2, 5), expected(files, torch.bfloat16, 2, 5))
    assert below.submitted == [(2, 5)]
    (host,) = tier.store.stats().links
    assert (host.name, host.transfers, host.nbytes) == ("host", 3, 3 * tier.above.layout(2, 5).room)
    tier.close()


def test_the_one_used_longest_ago_makes_room(files: ExpertFiles) -> None:
    below = InstantStore()
    tier = Tier(files, 2, below)
    for expert in (0, 1, 0, 2, 0, 1):
        tier.fetch(1, expert)
    # Six slots are shared; two of them are safe for each of the other layers.
    assert below.submitted == [(1, 0), (1, 1), (1, 2), (1, 1)]
    tier.close()


def test_two_links_are_counted_each(files: ExpertFiles) -> None:
    shelf = Shelf(files.spec, files.source, torch.bfloat16)
    tier = Tier(files, 1, DiskStore(shelf.layouts))
    for expert in (0, 0, 1, 1, 1):
        tier.fetch(4, expert)
    stats = tier.store.stats()
    disk, host = stats.links
    assert (disk.name, disk.transfers, host.transfers, stats.reads) == ("disk", 2, 5, 5)
    assert disk.nbytes == sum(shelf.layout(4, e).room for e in (0, 1))
    assert stats.bytes_read == host.nbytes == sum(tier.above.layout(4, e).room for e in (0, 0, 1, 1, 1))
    assert disk.busy_s > 0
    assert 0 < host.busy_s <= stats.busy_s
    assert 0 < stats.peak_bytes <= stats.budget_bytes
    tier.close()
    tier.store.close()


@pytest.mark.parametrize("stored", [torch.bfloat16, FP16], ids=str)
def test_a_failed_fill_is_no_hit_afterwards(tmp_path: Path, stored: torch.dtype) -> None:
    files, broken = ExpertFiles(tmp_path, stored=stored), True
    tier = Tier(files, 1, InstantStore(lambda read: broken))
    for _ in range(2):
        with pytest.raises(StoreError, match="refused"):
            tier.fetch(1, 3)
        assert tier.memory.hold(1, [3]) == frozenset()
        assert all((tier.memory.arena.tensor(slot) == 0xFF).all() for slot in range(3))
    broken = False
    assert same(tier.fetch(1, 3), expected(files, torch.bfloat16, 1, 3))
    assert tier.store.stats().failures == 2
    tier.close()


@pytest.mark.parametrize("stored", [torch.bfloat16, FP16], ids=str)
def test_held_experts_stay_and_others_are_read_past_them(tmp_path: Path, stored: torch.dtype) -> None:
    files = ExpertFiles(tmp_path, stored=stored)
    below = InstantStore()
    tier = Tier(files, 1, below)
    for layer in files.moe_layers:
        tier.fetch(layer, 2)
        assert tier.memory.hold(layer, [1, 2, 6]) == {2}
    for _ in range(2):
        assert same(tier.fetch(1, 4), expected(files, torch.bfloat16, 1, 4))
    assert below.submitted[3:] == [(1, 4), (1, 4)]
    slot = tier.memory.expert2slot(1)[2]
    assert same(tier.memory.table(1).tensors(slot), expected(files, torch.bfloat16, 1, 2))
    tier.memory.release()
    tier.fetch(1, 4)
    tier.fetch(1, 4)
    assert below.submitted[3:] == [(1, 4)] * 3
    tier.close()


def test_what_is_held_computes_the_same_bits(files: ExpertFiles) -> None:
    resident = files.resident(torch.float32)
    tier = Tier(files, 7, InstantStore(), dtype=torch.float32)
    for layer in files.moe_layers:
        for expert in range(files.num_experts):
            tier.fetch(layer, expert)
    for call in random_calls(files, torch.float32, [1, 5]):
        experts = sorted(set(call.ids_TK.flatten().tolist()))
        assert tier.memory.hold(call.layer, experts) == set(experts)
        outs = []
        for table, slots in (
            (tier.memory.table(call.layer), tier.memory.expert2slot(call.layer)[call.ids_TK.numpy()]),
            (resident._tables[call.layer], call.ids_TK.numpy()),
        ):
            outs.append(torch.full((*call.ids_TK.shape, files.hidden), torch.nan))
            moe_pairs(call.x_TD, torch.from_numpy(np.ascontiguousarray(slots)), table, outs[-1])
        assert torch.equal(*outs)
        tier.memory.release()
    tier.close()


def test_an_expert_on_its_way_is_not_a_hit(files: ExpertFiles) -> None:
    below = GatedStore(lambda key: key == (1, 0))
    tier = Tier(files, 2, below)
    first, second = tier.begin(1, 0), tier.begin(1, 0)
    tier.fetch(1, 1)  # comes through although the first is still on its way
    assert tier.memory.hold(1, [0, 1]) == {1}
    tier.memory.release()
    below.release()
    assert {tier.ended.get().error for _ in range(2)} == {None}
    for slot in (first, second):
        assert same(tier.above.view(1, 0, slot), expected(files, torch.bfloat16, 1, 0))
    tier.close()


def test_on_a_device_reads_wait_for_host_memory_that_is_held(files: ExpertFiles) -> None:
    below, copies = InstantStore(), DeviceCopies()
    tier = Tier(files, 1, below, copies=copies)
    for layer in files.moe_layers:
        tier.fetch(layer, 2)
        assert tier.memory.hold(layer, [2]) == {2}
    waiting = {key: tier.begin(*key) for key in ((1, 4), (1, 5), (4, 0))}
    tier.fetch(1, 2)  # what is held can be copied meanwhile
    assert len(below.submitted) == len(files.moe_layers)
    tier.memory.release()
    assert {tier.ended.get().error for _ in waiting} == {None}
    for key, slot in waiting.items():
        assert same(tier.above.view(*key, slot), expected(files, torch.bfloat16, *key))
    assert sorted(below.submitted[len(files.moe_layers) :]) == sorted(waiting)
    tier.close()
    assert [what for what, _ in copies.locks] == ["locked", "let go"]
    assert copies.locks[0][1] == tier.memory.arena.nbytes


def test_on_a_device_the_same_expert_twice_is_read_once(files: ExpertFiles) -> None:
    below = GatedStore(lambda key: key == (1, 0))
    tier = Tier(files, 2, below, copies=DeviceCopies())
    slots = [tier.begin(1, 0), tier.begin(1, 0)]
    tier.fetch(1, 1)  # comes through although the first is still on its way
    below.release()
    assert {tier.ended.get().error for _ in slots} == {None}
    assert below.submitted == [(1, 0), (1, 1)]
    for slot in slots:
        assert same(tier.above.view(1, 0, slot), expected(files, torch.bfloat16, 1, 0))
    tier.close()


def test_on_a_device_a_failed_read_lets_the_next_one_in(files: ExpertFiles) -> None:
    broken = True
    tier = Tier(files, 1, InstantStore(lambda read: broken), copies=DeviceCopies())
    for _ in range(2):
        with pytest.raises(StoreError, match="refused"):
            tier.fetch(1, 3)
    broken = False
    assert same(tier.fetch(1, 3), expected(files, torch.bfloat16, 1, 3))
    tier.close()


@pytest.mark.parametrize("policy", ["evict=random,prefetch=follow", "evict=lru"])
@pytest.mark.parametrize("slots", [1, 2, 7])
@pytest.mark.parametrize("stored", [torch.bfloat16, FP16], ids=str)
def test_a_bank_on_a_device_says_when_a_slot_was_used_last(
    tmp_path: Path, stored: torch.dtype, slots: int, policy: str
) -> None:
    """Between a use and the next copy into its slot the copies hear of it; bits are those of a resident bank."""
    files, copies = ExpertFiles(tmp_path, stored=stored), DeviceCopies()
    shelf = Shelf(files.spec, files.source, torch.float32)
    memory = HostMemory(shelf, slots * len(files.moe_layers), poison=True)
    store = HostStore(shelf, memory, ShuffledStore(slots), copies)
    bank = bank_over(files, store, SlotForm(shelf), copies, policy=policy, slots=5)
    compute, fused = bank._outputs.compute, bank._outputs.fused

    def compute_noted(x_TD, ids, views, pairs_TKD):
        copies.log += [("read", view.slot) for view in views]
        compute(x_TD, ids, views, pairs_TKD)

    def fused_noted(rows, residual_TD):
        copies.log += [("read", slot) for slot in bank._outputs.slots(rows.layer, rows.ids_TK.numpy())]
        return fused(rows, residual_TD)

    bank._outputs.compute, bank._outputs.fused = compute_noted, fused_noted
    resident = files.resident(torch.float32)
    for call in random_calls(files, torch.float32, [1, 6, 2, 1, 1, 9, 3, 1] * 4):
        assert torch.equal(apply(bank, call), apply(resident, call))
        bank.check_integrity()
    bank.close()
    last: dict[int, str] = {}
    for what, slot in copies.log:
        assert not (what == "copy" and last.get(slot) == "read")
        last[slot] = what
    assert {"read", "used", "copy"} == {what for what, _ in copies.log}
    assert "read" not in last.values()


def test_nothing_reads_a_slot_before_its_copy_has_ended(files: ExpertFiles) -> None:
    """Slots and outputs hold NaN until then."""
    shelf, copies = Shelf(files.spec, files.source, torch.float32), DelayedCopies()
    memory = HostMemory(shelf, shelf.num_experts)
    fill_all(shelf, memory, InstantStore())
    bank = bank_over(files, HostStore(shelf, memory, None, copies), SlotForm(shelf))
    resident, outs = files.resident(torch.float32), []
    calls = random_calls(files, torch.float32, [1, 5, 2])
    thread = threading.Thread(target=lambda: outs.extend(apply(bank, call) for call in calls))
    thread.start()
    assert copies.began.wait(10)
    assert not outs
    copies.go.set()
    thread.join()
    assert all(torch.equal(out, apply(resident, call)) for out, call in zip(outs, calls, strict=True))
    bank.close()


def test_an_urgent_copy_goes_between_the_pieces_of_another(tmp_path: Path) -> None:
    files, copies = ExpertFiles(tmp_path, hidden=200, ffn=120), SteppedCopies()
    tier = Tier(files, 7, None, copies=copies)
    fill_all(tier.shelf, tier.memory, InstantStore())
    background = tier.begin(1, 0, urgent=False)
    assert copies.began.wait(10)
    urgent = tier.begin(2, 3)
    copies.go.set()
    first, second = tier.ended.get(), tier.ended.get()
    assert (first.view[:2], second.view[:2]) == ((2, 3), (1, 0))
    assert len(copies.copied) > 4
    assert copies.copied[0] == (1, 0, 0)
    assert copies.copied[1] == (2, 3, 0)
    for key, slot in (((1, 0), background), ((2, 3), urgent)):
        assert same(tier.above.view(*key, slot), expected(files, torch.bfloat16, *key))
    tier.close()


def test_a_slot_that_is_copied_from_is_no_victim(tmp_path: Path) -> None:
    files, copies = ExpertFiles(tmp_path, hidden=200, ffn=120), SteppedCopies()
    below = InstantStore()
    tier = Tier(files, 1, below, copies=copies)
    slots = {(1, 0): tier.begin(1, 0, urgent=False)}
    assert copies.began.wait(10)
    for key in ((1, 1), (2, 0), (4, 0)):
        slots[key] = tier.begin(*key)
    copies.go.set()
    order = [tier.ended.get().view[:2] for _ in slots]
    assert order[-1] == (1, 0)
    for key, slot in slots.items():
        assert same(tier.above.view(*key, slot), expected(files, torch.bfloat16, *key))
    assert below.submitted == list(slots)
    tier.close()


def test_filling_ends_at_the_first_error(files: ExpertFiles) -> None:
    shelf = Shelf(files.spec, files.source, torch.bfloat16)
    memory = HostMemory(shelf, shelf.num_experts)
    below = InstantStore(lambda read: read.view[:2] == (2, 1))
    with pytest.raises(StoreError, match="refused"):
        fill_all(shelf, memory, below)
    assert len(below.submitted) < shelf.num_experts
    memory.check_integrity()
    memory.close()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stored", [torch.bfloat16, FP16], ids=str)
@pytest.mark.parametrize("slots", [1, 3, 7])
def test_a_bank_over_it_under_arrivals_in_any_order(tmp_path: Path, stored, dtype, slots: int) -> None:
    files, chance = ExpertFiles(tmp_path, stored=stored), random.Random(slots)
    resident = files.resident(dtype)
    shelf = Shelf(files.spec, files.source, dtype)
    memory = HostMemory(shelf, slots * len(files.moe_layers), poison=True)
    store = HostStore(shelf, memory, ShuffledStore(slots, lambda read: chance.random() < 0.05))
    bank = bank_over(files, store, SlotForm(shelf))
    failures = 0
    for call in random_calls(files, dtype, [1, 6, 2, 1, 1, 9, 3, 1, 1, 1] * 4):
        try:
            assert torch.equal(apply(bank, call), apply(resident, call))
        except StoreError:
            failures += 1
        bank.check_integrity()
    assert failures or slots == 7
    bank.close()
