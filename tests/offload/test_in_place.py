"""Banks that compute missing experts where they are: the bits of a resident bank, whatever is held, when and where."""

import random

import pytest
import torch

import smoe.offload.outputs
from smoe.core.errors import StoreError
from smoe.offload.costs import FixedCosts
from tests.offload.places import ResidentPlace
from tests.offload.stores import GatedStore, ShuffledStore
from tests.offload.support import ExpertFiles, apply, random_calls
from tests.offload.test_policies import EVICTIONS, Named, Scattered, call_of, forward, forwards, policies

ROWS = [1, 1, 4, 1, 33, 1, 1, 2, 1, 1]
MISSES = ["miss=compute,admit=background:beta=0.3", "miss=compute,admit=always", "miss=auto"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return ExpertFiles(tmp_path_factory.mktemp("experts"))


@pytest.mark.parametrize("miss", MISSES)
@pytest.mark.parametrize("slots", [1, 2, 7])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_bits_equal_resident_wherever_they_are_computed(files, miss, slots, share):
    for seed in (0, 1):
        place = ResidentPlace(files, torch.bfloat16, share, seed)
        chosen = policies(files, f"evict={EVICTIONS[seed]},{miss}", Scattered(files, seed) if seed else None)
        bank = files.offloaded(
            torch.bfloat16,
            slots,
            policies=chosen,
            over=ShuffledStore(seed),
            in_place=place,
            costs=FixedCosts(1.0, 0.3),
        )
        resident, accesses = files.resident(torch.bfloat16), 0
        for calls in forwards(files, random_calls(files, torch.bfloat16, ROWS, seed=seed)):
            for actual, call in zip(forward(bank, files, calls), calls, strict=True):
                assert torch.equal(actual, apply(resident, call))
                accesses += len(call.ids_TK.unique())
                assert not place.held
            bank.check_integrity()
        stats = bank.stats()
        bank.close()
        assert stats.hits + stats.late + stats.misses == accesses
        assert stats.computed_in_place <= stats.late + stats.misses
        assert stats.computed_in_place <= stats.computed_in_place_rows
        assert (stats.computed_in_place > 0) == (share > 0)
        if miss == MISSES[0] and share == 1:
            assert stats.admitted > 0 or seed, "prefetches may take all the room there is"
            assert stats.computed_in_place == stats.late + stats.misses, "nothing is waited for"


def test_only_what_is_admitted_is_moved(files):
    bank = files.offloaded(
        torch.float32,
        7,
        policies=policies(files, "miss=cpu,admit=background:beta=0.6"),
        in_place=ResidentPlace(files, torch.float32),
    )
    call = call_of(files, 1, [0, 3])  # a half each
    for _ in range(2):
        apply(bank, call)
    stats = bank.stats()
    assert (stats.computed_in_place, stats.computed_in_place_rows, stats.admitted) == (4, 4, 2)
    bank._transfers.take()
    bank.close()


def test_what_is_under_way_is_computed_in_place_and_arrives_later(files):
    store = GatedStore(lambda key: key == (2, 3))
    place = ResidentPlace(files, torch.float32)
    chosen = policies(files, "miss=compute,admit=always", Named((2, 3), (2, 5)))
    bank = files.offloaded(torch.float32, 7, policies=chosen, over=store, in_place=place)
    apply(bank, call_of(files, 1, [0]))
    call = call_of(files, 2, [3, 4])
    resident = files.resident(torch.float32)
    assert torch.equal(apply(bank, call), apply(resident, call))
    assert store.submitted == [(2, 3), (2, 5)], "neither cancelled nor read again"
    store.release()
    assert torch.equal(apply(bank, call), apply(resident, call))
    stats = bank.stats()
    assert (stats.hits, stats.late, stats.misses, stats.computed_in_place) == (1, 1, 3, 4)
    bank.check_integrity()
    bank.close()


def test_what_ends_a_pass_early_gives_back_what_is_held(files, monkeypatch):
    place = ResidentPlace(files, torch.float32, 0.5)
    store = ShuffledStore(0, refuses=lambda read: random.Random(read.view.generation).random() < 0.3)
    bank = files.offloaded(torch.float32, 1, policies=policies(files, "miss=compute"), over=store, in_place=place)
    resident, failures = files.resident(torch.float32), 0
    for call in random_calls(files, torch.float32, ROWS):
        try:
            assert torch.equal(apply(bank, call), apply(resident, call))
        except StoreError:
            failures += 1
        assert not place.held
        bank.check_integrity()
    assert failures
    place.share = 1.0

    def interrupt(*args):
        assert place.held
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(smoe.offload.outputs, "moe_pairs", interrupt)
        with pytest.raises(KeyboardInterrupt):
            apply(bank, call_of(files, 4, [2, 3]))
    assert not place.held
    bank.check_integrity()
    bank.close()


def test_costs_are_measured_and_decide(files):
    bank = files.offloaded(
        torch.float32,
        3,
        policies=policies(files, "miss=auto,admit=always"),
        in_place=ResidentPlace(files, torch.float32),
    )
    resident = files.resident(torch.float32)
    for call in random_calls(files, torch.float32, [1, 4, 1, 9, 1, 33]):
        assert torch.equal(apply(bank, call), apply(resident, call))
    assert bank._costs.fetch_s > 0
    assert bank._costs.compute_s(1) > 0
    assert bank.stats().computed_in_place > 0
    bank.close()
