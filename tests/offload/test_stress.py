"""Everything at once, by chance: policies, sizes, batches, tiers, arrivals in any order, reads that fail, resizes.

Slots, host slots and outputs that hold nothing are NaN: whoever reads one of them too early or too late shows.
"""

import random

import numpy as np
import pytest
import torch

from smoe.core.errors import StoreError
from smoe.core.link_model import LinkModel
from smoe.offload.bank import OffloadedBank
from smoe.offload.emulated import EmulatedStore
from smoe.offload.host import HostMemory
from smoe.offload.host_store import HostStore, fill_all
from smoe.offload.shelf import Shelf, SlotForm
from smoe.offload.store import DiskStore
from tests.offload.stores import InstantStore, ShuffledStore
from tests.offload.support import ExpertFiles, apply, random_calls
from tests.offload.test_policies import EVICTIONS, Scattered, forwards, policies

TIERS = ["disk", "disk slow", "shuffled", "shuffled failing", "host", "host part", "host part failing"]
PREFETCHES = ["none", "none", "gate", "follow", "token:width=2", "scattered"]
MISSES = ["wait", "compute", "compute,admit=background:beta=0.2", "auto", "auto,admit=always", "substitute"]
SLOW = LinkModel(1e12, latency_s=5e-3)


@pytest.fixture(scope="module")
def all_files(tmp_path_factory):
    # As they lie in slots; converted on the way; and of another geometry, with as many experts a row as there are.
    options = ({}, {"stored": torch.float16, "bias": True}, {"num_experts": 4, "top_k": 4, "moe_layers": (0, 1)})
    return [ExpertFiles(tmp_path_factory.mktemp("experts"), **option) for option in options]


def opened(files, dtype, tier, chance):
    """Shelf, store, what can be computed in place."""
    shelf, layers = Shelf(files.spec, files.source, dtype), len(files.moe_layers)
    seed, refuses = chance.randrange(1000), lambda read: False
    if "failing" in tier:
        refuses = lambda read: chance.random() < 0.02  # noqa: E731
    if tier.startswith("shuffled"):
        return shelf, ShuffledStore(seed, refuses), None
    if tier.startswith("disk"):
        store = DiskStore(shelf.layouts, num_threads=chance.randint(1, 3), chunk_bytes=4096)
        return shelf, EmulatedStore(store, SLOW) if "slow" in tier else store, None
    slots = chance.randint(1, files.num_experts - 1) if "part" in tier else files.num_experts
    memory = HostMemory(shelf, slots * layers, poison=True)
    if "part" in tier:
        return SlotForm(shelf), HostStore(shelf, memory, ShuffledStore(seed, refuses)), memory
    fill_all(shelf, memory, InstantStore())
    return SlotForm(shelf), HostStore(shelf, memory, None), memory


def stress(files, seed):
    chance = random.Random(seed)
    dtype, tier = chance.choice([torch.float32, torch.bfloat16]), chance.choice(TIERS)
    evict, prefetch = chance.choice(EVICTIONS), chance.choice(PREFETCHES)
    miss = chance.choice(MISSES if tier.startswith("host") else ["wait", "wait", "substitute"])
    layers, scattered = len(files.moe_layers), Scattered(files, seed, chance.randint(1, 9))
    text = f"evict={evict},prefetch={'none' if prefetch == 'scattered' else prefetch},miss={miss}"
    chosen = policies(files, text, scattered if prefetch == "scattered" else None)
    shelf, store, place = opened(files, dtype, tier, chance)
    most = files.num_experts * layers
    num_slots = chance.randint(layers, most)
    bank = OffloadedBank(
        shelf,
        store,
        chosen,
        num_slots=num_slots,
        floor=chance.randint(1, num_slots // layers),
        max_slots=most,
        max_background=chance.choice([None, 1, 3, 8]),
        pause_share=chance.choice([None, 0.5]),
        in_place=place,
        poison=True,
    )
    bank.use_lookahead(lambda layer, h_TD: h_TD[:, : files.num_experts].to(torch.float16))
    resident, rows = files.resident(dtype), [chance.choice([1, 1, 1, 2, 4, 7, 64]) for _ in range(14)]
    case, failures, accesses = f"seed {seed}: {tier}, {text}, {num_slots} slots, {dtype}", 0, 0
    for calls in forwards(files, random_calls(files, dtype, rows, seed=seed)):
        if chance.random() < 0.1:
            bank.resize(chance.randint(layers, most))
        num_rows = len(calls[0].x_TD)
        bank.begin_forward(torch.arange(num_rows))
        for call in calls:
            logits_TE = torch.from_numpy(np.random.default_rng(seed).normal(size=(num_rows, files.num_experts))).float()
            accesses += len(call.ids_TK.unique())
            try:
                actual = bank.apply(call.rows._replace(logits_TE=logits_TE), call.residual_TD)
            except StoreError:
                failures += 1
            else:
                assert actual.isfinite().all(), case
                if miss != "substitute":
                    assert torch.equal(actual, apply(resident, call)), case
            bank.check_integrity()
    stats = bank.stats()
    bank.close()
    assert failures == 0 or "failing" in tier, case
    assert stats.hits + stats.late + stats.misses == accesses, case
    assert stats.computed_in_place <= stats.late + stats.misses, case
    # What is not waited for can be late again.
    late = stats.late if miss == "wait" else 0
    assert stats.prefetched >= stats.prefetch_used + late + stats.wasted, case
    assert stats.peak_bytes <= stats.budget_bytes, case


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_bits_books_and_bounds(all_files, first):
    for seed in range(first, first + 10):
        stress(all_files[seed % 3], seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 50))
def test_bits_books_and_bounds_at_length(all_files, first):
    for seed in range(first, first + 50):
        stress(all_files[seed % 3], seed)
