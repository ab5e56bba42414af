"""A second core: computes beside the first, gives the same bits, and is waited for whatever happens."""

import os
import threading

import pytest
import torch

import smoe.offload.outputs
from smoe.core.errors import StoreError
from smoe.kernels import moe_pairs
from smoe.offload.costs import FixedCosts
from smoe.offload.pools import SecondCore
from tests.offload.places import ResidentPlace
from tests.offload.stores import ShuffledStore
from tests.offload.support import ExpertFiles, apply, random_calls
from tests.offload.test_policies import call_of, forward, forwards, policies

ROWS = [1, 9, 1, 4, 33, 1, 9, 2]
WAIT_S = 60  # until a test that hangs is one that fails


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return ExpertFiles(tmp_path_factory.mktemp("experts"))


@pytest.fixture
def second():
    core = SecondCore()
    yield core
    core.close()


@pytest.mark.parametrize(
    "text",
    [
        "evict=lru,miss=cpu",
        "evict=lru,miss=auto",
        "evict=utility:adaptive,prefetch=utility,miss=cpu",
        "evict=utility:inertial:tau=2,prefetch=utility,miss=auto",
        "evict=utility:adaptive:difference,prefetch=utility,miss=cpu",
        "evict=utility:adaptive:reachable,prefetch=utility,miss=auto",
    ],
)
@pytest.mark.parametrize("slots", [1, 3, 7])
def test_bits_equal_resident_beside_and_after(files, second, text, slots):
    for beside in (second, None):
        place = ResidentPlace(files, torch.bfloat16, 0.8, 1)
        bank = files.offloaded(
            torch.bfloat16,
            slots,
            policies=policies(files, text),
            over=ShuffledStore(1),
            in_place=place,
            costs=FixedCosts(1.0, 0.3, 0.1),
            beside=beside,
        )
        resident = files.resident(torch.bfloat16)
        for calls in forwards(files, random_calls(files, torch.bfloat16, ROWS, seed=1)):
            for actual, call in zip(forward(bank, files, calls), calls, strict=True):
                assert torch.equal(actual, apply(resident, call))
                assert not place.held
            bank.check_integrity()
        assert bank.stats().computed_in_place > 0
        bank.close()


def test_both_compute_at_once(files, second, monkeypatch):
    """Neither of the two calls of the kernel ends before the other has begun."""
    both, threads = threading.Barrier(2), set()

    def meet(x_TD, slots_TK, table, pairs_TKD):
        threads.add(threading.current_thread().name.rstrip("_0"))
        both.wait(WAIT_S)
        moe_pairs(x_TD, slots_TK, table, pairs_TKD)

    place = ResidentPlace(files, torch.float32)
    bank = files.offloaded(
        torch.float32, 2, policies=policies(files, "miss=cpu,admit=always"), in_place=place, beside=second
    )
    bank.begin_forward(torch.zeros(1, dtype=torch.int64))
    view = bank._residency.try_reserve(1, 2)
    bank._transfers.begin([view])
    arrivals = bank._transfers.take()
    bank._outputs.install(view, arrivals[0].tensors)
    bank._residency.commit(view)
    bank._residency.unpin(view)
    call = call_of(files, 1, [2, 3])
    with monkeypatch.context() as patch:
        patch.setattr(smoe.offload.outputs, "moe_pairs", meet)
        found = apply(bank, call)
    assert torch.equal(found, apply(files.resident(torch.float32), call))
    assert len(threads) == 2
    bank.close()


def test_what_fails_beside_ends_the_pass_and_gives_all_back(files, second, monkeypatch):
    place = ResidentPlace(files, torch.float32)
    bank = files.offloaded(torch.float32, 3, policies=policies(files, "miss=cpu"), in_place=place, beside=second)

    def interrupt(*args):
        raise KeyboardInterrupt

    call = call_of(files, 4, [2, 3])
    with monkeypatch.context() as patch:
        patch.setattr(smoe.offload.outputs, "moe_pairs", interrupt)
        with pytest.raises(KeyboardInterrupt):
            apply(bank, call)
    assert not place.held
    bank.check_integrity()
    assert torch.equal(apply(bank, call), apply(files.resident(torch.float32), call))
    bank.close()


def test_what_fails_here_waits_for_what_is_beside(files, second):
    place = ResidentPlace(files, torch.float32, 0.5)
    store = ShuffledStore(0, refuses=lambda read: True)
    bank = files.offloaded(
        torch.float32, 1, policies=policies(files, "miss=cpu"), over=store, in_place=place, beside=second
    )
    failures = 0
    for call in random_calls(files, torch.float32, ROWS):
        try:
            apply(bank, call)
        except StoreError:
            failures += 1
        assert not place.held
        bank.check_integrity()
    assert failures
    assert bank.stats().computed_in_place > 0
    bank.close()


def test_threads_of_others_are_left_as_they_were():
    before, found = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        core = SecondCore()
        assert core.begin(torch.get_num_threads).result() == 1
        other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        other.start()
        other.join()
        assert [torch.get_num_threads(), *found] == [3, 3]
        core.close()
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="a core for a thread: Linux")
def test_a_core_of_its_own():
    mine = os.sched_getaffinity(0)
    core = SecondCore(max(mine))
    assert core.begin(lambda: os.sched_getaffinity(0)).result() == {max(mine)}
    assert os.sched_getaffinity(0) == mine
    core.close()
