"""A bank that gets more and fewer slots while it works."""

import random

import pytest
import torch

from smoe.offload.cache import Residency
from smoe.offload.policies.lru import LRU
from tests.offload.stores import ShuffledStore
from tests.offload.support import ExpertFiles, apply, random_calls
from tests.offload.test_policies import EVICTIONS, Scattered, policies


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return ExpertFiles(tmp_path_factory.mktemp("experts"))


@pytest.mark.parametrize("poison", [True, False])
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_bits_stay_and_the_bound_holds(files, eviction, poison):
    chance = random.Random(3)
    bank = files.offloaded(
        torch.float32,
        3,
        policies=policies(files, f"evict={eviction}", Scattered(files)),
        over=ShuffledStore(0),
        max_slots=21,
        poison=poison,
    )
    resident, slot_bytes = files.resident(torch.float32), bank.stats().budget_bytes // 9
    num_slots = 9
    for index, call in enumerate(random_calls(files, torch.float32, [1, 4, 1, 33, 1, 2] * 5)):
        if index % 4 == 3:
            num_slots = chance.randint(3, 21)
            bank.resize(num_slots)
            bank.check_integrity()
        assert torch.equal(apply(bank, call), apply(resident, call))
        bank.check_integrity()
        stats = bank.stats()
        assert stats.peak_bytes <= stats.budget_bytes == num_slots * slot_bytes
    bank.close()


@pytest.mark.parametrize("num_slots", [2, 22])
def test_sizes_that_cannot_be(files, num_slots):
    bank = files.offloaded(torch.float32, 3, max_slots=21)
    with pytest.raises(ValueError, match=r"(floor: 0 \(1 up to 2 slots|num_slots: 22 \(up to 21\))"):
        bank.resize(num_slots)
    bank.check_integrity()
    bank.close()


def test_shrinking_keeps_the_young_and_serves_floors():
    residency = Residency(6, [0, 1], LRU(), floor=1)
    for expert in range(5):
        view = residency.try_reserve(0, expert)
        residency.commit(view)
        residency.unpin(view)
    taken = residency.resize(4, floor=2)
    residency.check_idle()
    assert set(residency.resident(0)) == {3, 4}, "two slots are free for layer 1, two went"
    assert len(taken) == 2
    assert residency.try_reserve(1, 0) is not None
    assert residency.try_reserve(1, 1) is not None


def test_released_memory_is_given_back(files):
    bank = files.offloaded(torch.float32, 7, poison=False)
    for call in random_calls(files, torch.float32, [33]):
        apply(bank, call)
    bank.resize(3)
    held = {slot for layer in files.moe_layers for slot in bank._residency.resident(layer).values()}
    away = set(bank._residency._out_of_use)
    assert len(away) == 18
    assert all(not bank._arena.tensor(slot).any() for slot in away - held)
    bank.close()
