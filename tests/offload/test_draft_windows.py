"""An offloaded bank under draft windows: the same bits, whole slots, plans taken back."""

import random

import numpy as np
import pytest
import torch

from smoe.core.draft import TIMINGS
from smoe.core.errors import StoreError
from smoe.offload.bank import OffloadedBank
from smoe.offload.policies.draft_plan import PlanRule
from smoe.offload.window import make_window
from tests.offload.stores import GatedStore, InstantStore, ShuffledStore
from tests.offload.support import Call, ExpertFiles, apply, random_calls

POLICIES = ("evict=lru", "evict=least-stale", "evict=lru:no-touch,prefetch=follow", "evict=utility", "evict=random")
RULES = (PlanRule(), PlanRule(scale="demand", sticky=True), PlanRule(resident_first=True))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return ExpertFiles(tmp_path_factory.mktemp("experts"), num_experts=11)


def draft(window, files, calls: list[Call], chance: random.Random, *, recall: float) -> None:
    """A step a row of the verification to come, whose routing it mostly foretells."""
    rows = len(calls[0].ids_TK)
    window.begin(rows)
    for row in range(rows - 1):
        for call in calls:
            ids = call.ids_TK[row : row + 1].numpy().copy()
            if chance.random() > recall:
                ids = np.array([chance.sample(range(files.num_experts), files.top_k)], dtype=np.int32)
            window.routed(call.layer, ids)
        window.after_step(1e-3)
    window.before_verify()


def run_windows(files, bank: OffloadedBank, window, *, windows: int, seed: int = 0, recall: float = 0.8) -> None:
    """Verifies windows of 1 to 6 rows against a resident bank."""
    chance = random.Random(seed)
    rows = [chance.choice([1, 2, 4, 5, 6]) for _ in range(windows)]
    calls, resident = random_calls(files, torch.float32, rows, seed=seed), files.resident(torch.float32)
    layers = len(files.moe_layers)
    for number in range(windows):
        forward = calls[number * layers : (number + 1) * layers]
        draft(window, files, forward, chance, recall=recall)
        bank.begin_forward(torch.zeros(rows[number], dtype=torch.int64))
        for call in forward:
            assert torch.equal(apply(bank, call), apply(resident, call))
            bank.check_integrity()


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("policy", POLICIES)
def test_bits_equal_resident_under_windows(files, timing, policy):
    for number, rule in enumerate(RULES):
        store = ShuffledStore(number) if number else None
        bank = files.offloaded(
            torch.float32,
            number + 2,
            extra=4,
            policies=policy,
            over=store,
            max_planned=number + 1,
            rolling=number or None,
        )
        window = make_window(timing, bank, files.moe_layers, files.num_experts, rule)
        run_windows(files, bank, window, windows=12, seed=number)
        stats = bank.stats()
        if timing != "none":
            assert stats.prefetched > 0
        elif "prefetch" not in policy:
            assert stats.prefetched == 0
        bank.close()


def test_a_window_brings_in_what_verification_asks_for(files):
    bank = files.offloaded(torch.float32, 8, over=InstantStore())
    run_windows(files, bank, make_window("late", bank, files.moe_layers, files.num_experts), windows=40, recall=1.0)
    stats = bank.stats()
    assert stats.prefetch_used > stats.cold_misses
    bank.close()


def test_stale_plans_are_taken_back_before_they_reach_the_store(files):
    store = GatedStore(lambda key: True)
    bank = files.offloaded(torch.float32, 6, over=store)
    assert bank.prefetch([(1, e) for e in range(5)]) == 5 * bank._slot_bytes
    assert len(store.submitted) == 2
    assert bank.prefetch([(1, 4), (2, 0)]) == bank._slot_bytes, "(1, 4) was asked for before"
    store.release()
    bank.poll()
    bank.poll()
    assert store.submitted == [(1, 0), (1, 1), (1, 4), (2, 0)]
    assert bank.stats().cancelled == 2
    assert bank.resident() == {(1, 0), (1, 1), (1, 4), (2, 0)}
    bank.check_integrity()
    bank.close()


def test_the_nearest_layer_of_all_plans_goes_first(files):
    for order, expected in (("deadline", [(1, 0), (4, 0)]), ("submitted", [(4, 0), (1, 0)])):
        store = GatedStore(lambda key: True)
        bank = files.offloaded(torch.float32, 6, over=store, plan_order=order)
        bank.prefetch([(2, 0), (2, 1), (4, 0)])
        bank.prefetch([(2, 0), (2, 1), (4, 0), (1, 0)])
        store.release()
        bank.poll()
        bank.poll()
        assert store.submitted == [(2, 0), (2, 1), *expected]
        bank.close()


def test_a_prefetch_that_fails_is_read_again(files):
    refused = [True]
    store = InstantStore(lambda read: refused[0])
    bank, resident = files.offloaded(torch.float32, 5, over=store), files.resident(torch.float32)
    bank.prefetch([(layer, e) for layer in files.moe_layers for e in range(5)])
    bank.poll()
    bank.check_integrity()
    assert bank.resident() == set()
    refused[0] = False
    for call in random_calls(files, torch.float32, [4]):
        assert torch.equal(apply(bank, call), apply(resident, call))
    bank.close()


def test_a_verification_that_fails_leaves_a_usable_bank(files):
    refused = [False]
    store = ShuffledStore(1, lambda read: refused[0])
    bank, resident = files.offloaded(torch.float32, 3, over=store, max_planned=9), files.resident(torch.float32)
    window = make_window("late", bank, files.moe_layers, files.num_experts)
    calls = random_calls(files, torch.float32, [4] * 10)
    failures = 0
    for number in range(10):
        forward = calls[3 * number : 3 * number + 3]
        refused[0] = number % 3 == 1
        draft(window, files, forward, random.Random(number), recall=0.5)
        bank.begin_forward(torch.zeros(4, dtype=torch.int64))
        try:
            for call in forward:
                assert torch.equal(apply(bank, call), apply(resident, call))
        except StoreError:
            failures += 1
        bank.check_integrity()
    assert failures
    bank.close()


def test_slots_change_between_windows(files):
    bank = files.offloaded(torch.float32, 3, max_slots=30, over=ShuffledStore(2))
    window = make_window("adaptive", bank, files.moe_layers, files.num_experts)
    for number, slots in enumerate((9, 30, 3, 12)):
        bank.prefetch([(layer, e) for layer in files.moe_layers for e in range(4)])
        bank.resize(slots)
        assert bank.slots_a_layer == slots // 3
        run_windows(files, bank, window, windows=5, seed=number)
    bank.close()


def test_the_rate_of_the_link_is_measured(files):
    bank = files.offloaded(torch.float32, 3)
    declared = bank.bytes_per_second
    run_windows(files, bank, make_window("none", bank, files.moe_layers, files.num_experts), windows=5)
    assert bank.bytes_per_second != declared
    bank.close()
