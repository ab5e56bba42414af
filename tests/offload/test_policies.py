"""Banks under every lossless policy: the bits of a resident bank whatever is fetched ahead, and whenever it comes."""

import random
from dataclasses import replace

import pytest
import torch

from smoe.core.errors import StoreError
from smoe.offload.policies.catalog import CATALOG, Geometry
from smoe.offload.policies.spec import parse_policies
from tests.offload.stores import GatedStore, InstantStore, ShuffledStore
from tests.offload.support import ExpertFiles, apply, random_calls

EVICTIONS = [name for name, policy in CATALOG["evict"].items() if not policy.needs_future]
ROWS = [1, 1, 4, 1, 33, 1, 1, 2, 1, 1]


class Scattered:
    """Names experts of any layer at random, the next one's most of the time; asks for look-ahead."""

    needs_lookahead = True

    def __init__(self, files, seed=0, count=4):
        self._files, self._chance, self._count = files, random.Random(seed), count

    def plan(self, routing, next_layer, lookahead_logits):
        layers = [next_layer, next_layer, self._chance.choice(self._files.moe_layers)]
        return [
            (self._chance.choice(layers), self._chance.randrange(self._files.num_experts)) for _ in range(self._count)
        ]

    def observe(self, routing):
        return


class Named:
    """Names what it is told to."""

    needs_lookahead = False

    def __init__(self, *keys):
        self.keys = list(keys)

    def plan(self, routing, next_layer, lookahead_logits):
        keys, self.keys = self.keys, []
        return keys

    def observe(self, routing):
        return


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return ExpertFiles(tmp_path_factory.mktemp("experts"))


def policies(files, text, prefetch=None):
    geometry = Geometry(layers=files.moe_layers, num_experts=files.num_experts, top_k=files.top_k)
    made = parse_policies(text).build(geometry)
    return made if prefetch is None else replace(made, prefetch=prefetch)


def forward(bank, files, calls):
    """The calls of one forward, one a layer."""
    bank.begin_forward(torch.zeros(len(calls[0].x_TD), dtype=torch.int64))
    return [apply(bank, call) for call in calls]


def forwards(files, calls):
    layers = len(files.moe_layers)
    return [calls[first : first + layers] for first in range(0, len(calls), layers)]


@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize("slots", [1, 2, 3, 7])
@pytest.mark.parametrize("seed", [0, 1])
def test_bits_equal_resident_whatever_is_prefetched(files, eviction, slots, seed):
    resident = files.resident(torch.float32)
    chosen = policies(files, f"evict={eviction}", Scattered(files, seed))
    options = {"extra": 2 * seed, "floor": 1 if seed else slots, "over": ShuffledStore(seed)}
    bank = files.offloaded(torch.float32, slots, policies=chosen, **options)
    bank.use_lookahead(lambda layer, h_TD: torch.zeros(len(h_TD), files.num_experts, dtype=torch.float16))
    for calls in forwards(files, random_calls(files, torch.float32, ROWS, seed=seed)):
        for actual, call in zip(forward(bank, files, calls), calls, strict=True):
            assert torch.equal(actual, apply(resident, call))
        bank.check_integrity()
    stats = bank.stats()
    bank.close()
    assert stats.prefetched > 0
    assert stats.prefetched >= stats.prefetch_used + stats.late + stats.wasted
    accesses = sum(len(call.ids_TK.unique()) for call in random_calls(files, torch.float32, ROWS, seed=seed))
    assert stats.hits + stats.late + stats.misses == accesses


def call_of(files, layer, experts):
    """One row that uses `experts`."""
    (call,) = [c for c in random_calls(files, torch.float32, [1]) if c.layer == layer]
    ids_TK = torch.tensor([experts], dtype=torch.int32)
    return replace(call, ids_TK=ids_TK, weights_TK=torch.full(ids_TK.shape, 1 / len(experts)))


def test_a_prefetch_in_flight_is_waited_for_without_a_second_read(files):
    store = GatedStore(lambda key: key == (2, 6))
    bank = files.offloaded(torch.float32, 7, policies=policies(files, "", Named((2, 6), (2, 5))), over=store)
    first, second = call_of(files, 1, [0, 1]), call_of(files, 2, [0, 5, 6])
    apply(bank, first)
    assert store.submitted == [(1, 0), (1, 1), (2, 6), (2, 5)]

    def held(read):
        store.submitted.append(read.view[:2])
        store.release()
        store._finish(read)

    store.submit = held
    assert torch.equal(apply(bank, second), apply(files.resident(torch.float32), second))
    assert store.submitted[4:] == [(2, 0)]
    stats = bank.stats()
    assert (stats.prefetched, stats.prefetch_used, stats.late, stats.wasted) == (2, 1, 1, 0)
    bank.check_integrity()


def test_a_stale_prefetch_that_has_not_gone_to_the_store_is_cancelled(files):
    store = GatedStore(lambda key: key[0] == 2)
    bank = files.offloaded(
        torch.float32, 7, policies=policies(files, "", Named(*[(2, e) for e in range(6)])), over=store
    )
    apply(bank, call_of(files, 1, [0]))
    assert store.submitted == [(1, 0), (2, 0), (2, 1)], "two at a time"
    store._held = lambda key: key == (2, 0) or key == (2, 1)
    call = call_of(files, 2, [4, 6])
    assert torch.equal(apply(bank, call), apply(files.resident(torch.float32), call))
    assert store.submitted[3:] == [(2, 4), (2, 6)], "what is asked for overtakes, the rest is cancelled"
    stats = bank.stats()
    assert (stats.prefetched, stats.late, stats.wasted, stats.cancelled) == (6, 1, 3, 3)
    store.release()
    bank.check_integrity()


def test_of_prefetches_the_earliest_pass_comes_first(files):
    store = GatedStore(lambda key: key[0] != 1)
    named = Named((4, 0), (4, 1), (4, 2), (1, 3), (2, 0), (2, 1), (4, 3))
    bank = files.offloaded(torch.float32, 7, policies=policies(files, "", named), over=store)
    apply(bank, call_of(files, 1, [0]))
    assert store.submitted == [(1, 0), (4, 0), (4, 1)], "the store is never idle for a better one to come"
    store.release()
    assert store.submitted[3:] == [(2, 0), (2, 1), (4, 2), (4, 3), (1, 3)], "layer 1 is a forward away"
    bank.check_integrity()


def test_a_failed_prefetch_harms_nobody_and_its_expert_is_read_again(files):
    refusing = [True]
    store = InstantStore(lambda read: refusing[0] and read.view[:2] == (2, 3))
    bank = files.offloaded(torch.float32, 2, policies=policies(files, "", Named((2, 3))), over=store)
    resident = files.resident(torch.float32)
    for call in (call_of(files, 1, [0]), call_of(files, 2, [1]), call_of(files, 4, [1])):
        assert torch.equal(apply(bank, call), apply(resident, call))
        bank.check_integrity()
    call = call_of(files, 2, [3])
    with pytest.raises(StoreError, match="refused"):
        apply(bank, call)
    bank.check_integrity()
    refusing[0] = False
    assert torch.equal(apply(bank, call), apply(resident, call))
    assert bank.stats().wasted == 1


def test_a_late_prefetch_that_fails_is_read_again(files):
    store = GatedStore(lambda key: key == (2, 3))
    tries = []
    store._refuses = lambda read: read.view[:2] == (2, 3) and len(tries) == 0 and not tries.append(1)
    bank = files.offloaded(torch.float32, 1, policies=policies(files, "", Named((2, 3))), over=store)
    apply(bank, call_of(files, 1, [0]))
    release = store.release
    bank._transfers.promote = lambda view: release()
    call = call_of(files, 2, [3, 4])
    assert torch.equal(apply(bank, call), apply(files.resident(torch.float32), call))
    assert store.submitted == [(1, 0), (2, 3), (2, 3), (2, 4)]
    bank.check_integrity()


def test_a_miss_waits_when_prefetches_hold_all_slots_of_its_layer(files):
    store = GatedStore(lambda key: key == (1, 6))
    bank = files.offloaded(torch.float32, 1, policies=policies(files, "", Named((1, 6))), over=store)
    apply(bank, call_of(files, 4, [0]))
    assert store.submitted == [(4, 0), (1, 6)]
    take = bank._transfers.take

    def release_then_take():
        store.release()
        return take()

    bank._transfers.take = release_then_take
    call = call_of(files, 1, [2, 3])
    assert torch.equal(apply(bank, call), apply(files.resident(torch.float32), call))
    bank.check_integrity()


def test_an_error_amid_prefetches_leaves_no_transfer_behind(files):
    for seed in range(10):
        chance = random.Random(seed)
        store = ShuffledStore(seed, lambda read, chance=chance: chance.random() < 0.2)
        bank = files.offloaded(
            torch.float32, 2, extra=3, policies=policies(files, "", Scattered(files, seed)), over=store
        )
        resident, failures = files.resident(torch.float32), 0
        for call in random_calls(files, torch.float32, ROWS, seed=seed):
            try:
                assert torch.equal(apply(bank, call), apply(resident, call))
            except StoreError:
                failures += 1
            bank.check_integrity()
        assert failures
        bank.close()
