"""A bank that gets more and fewer slots while it works."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smoe.core.errors import ConfigError
from smoe.offload.costs import FixedCosts
from tests.offload.places import ResidentPlace
from tests.offload.stores import GatedStore, ShuffledStore
from tests.offload.support import ExpertFiles, apply, random_calls
from tests.offload.test_policies import EVICTIONS, Named, Scattered, call_of, forward, policies


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


def test_a_refill_leaves_the_named_experts_whatever_ran_before(files):
    bank, resident = files.offloaded(torch.float32, 3), files.resident(torch.float32)
    calls = random_calls(files, torch.float32, [33, 33, 33, 1, 4, 2, 3])
    for call in calls[:3]:
        apply(bank, call)
    named = sorted(bank.resident())
    for call in calls[3:]:
        assert torch.equal(apply(bank, call), apply(resident, call))
        bank.refill(named)
        bank.check_integrity()
        assert sorted(bank.resident()) == named
    bank.close()


@pytest.mark.parametrize("num_slots", [2, 22])
def test_sizes_that_cannot_be(files, num_slots):
    store = GatedStore(lambda key: key[0] == 2)
    prefetch = Named((2, 0), (2, 1), (2, 2))
    bank = files.offloaded(torch.float32, 3, policies=policies(files, "", prefetch), over=store, max_slots=21)
    apply(bank, call_of(files, 1, [0]))
    with pytest.raises(ConfigError, match=rf"^num_slots: {num_slots} \(from 3, one a layer, up to 21\)$"):
        bank.resize(num_slots)
    bank.check_integrity()
    assert bank._transfers.pending == 3, "not cancelled for nothing"
    store.release()
    bank.close()


def test_what_may_be_under_way_follows_the_size(files):
    wanted = [(2, expert) for expert in range(7)]
    prefetch = Named()
    bank = files.offloaded(torch.float32, 2, policies=policies(files, "", prefetch), max_slots=21)
    begun = [bank.stats().prefetched]
    for num_slots in (6, 15, 3):
        bank.resize(num_slots)
        for call in (call_of(files, 2, [0]), call_of(files, 4, [0])):
            apply(bank, call)
        prefetch.keys = list(wanted)
        apply(bank, call_of(files, 1, [0]))
        begun.append(bank.stats().prefetched)
        bank.resize(3)
    assert np.diff(begun).tolist() == [2, 5, 1]
    bank.close()


SIZES = st.integers(3, 21)
STEP = st.one_of(SIZES.map(lambda n: ("resize", n)), st.sampled_from([1, 1, 2, 5, 33]).map(lambda n: ("forward", n)))


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(STEP, min_size=3, max_size=14),
    first=SIZES,
    eviction=st.sampled_from(EVICTIONS),
    miss=st.sampled_from(["wait", "compute", "auto"]),
    ahead=st.booleans(),
    seed=st.integers(0, 9),
)
def test_any_sizes_at_any_time_keep_bits_and_books(files, steps, first, eviction, miss, ahead, seed):
    place = ResidentPlace(files, torch.float32, 0.6, seed)
    bank = files.offloaded(
        torch.float32,
        7,
        policies=policies(files, f"evict={eviction},miss={miss}", Scattered(files, seed) if ahead else None),
        over=ShuffledStore(seed),
        in_place=place,
        costs=FixedCosts(1.0, 0.4),
    )
    resident, slot_bytes, num_slots = files.resident(torch.float32), bank.stats().budget_bytes // 21, first
    bank.resize(first)
    for number, (step, size) in enumerate(steps):
        if step == "resize":
            bank.resize(size)
            num_slots = size
        else:
            calls = random_calls(files, torch.float32, [size], seed=number)
            for actual, call in zip(forward(bank, files, calls), calls, strict=True):
                assert torch.equal(actual, apply(resident, call))
        bank.check_integrity()
        stats = bank.stats()
        assert stats.peak_bytes <= stats.budget_bytes == num_slots * slot_bytes
    bank.close()


def test_released_memory_is_given_back(files):
    bank = files.offloaded(torch.float32, 7, poison=False)
    for call in random_calls(files, torch.float32, [33]):
        apply(bank, call)
    bank.resize(3)
    held = {slot for layer in files.moe_layers for slot in bank._residency.resident(layer).values()}
    away = set(bank._residency._slots._aside)
    assert len(away) == 18
    assert all(not bank._arena.tensor(slot).any() for slot in away - held)
    bank.close()
