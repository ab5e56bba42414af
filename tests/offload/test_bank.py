import errno
import os
import random
import re

import pytest
import torch

import smoe.offload.files
import smoe.offload.outputs
from smoe.core.errors import StoreError
from smoe.models.bank import RoutedRows
from tests.offload.stores import InstantStore
from tests.offload.support import ExpertFiles, apply, random_calls

DTYPES = [torch.float32, torch.bfloat16]
ROWS = [1, 4, 1, 4, 33, 1, 1, 4]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return ExpertFiles(tmp_path_factory.mktemp("experts"))


def assert_same_bits(files, dtype, bank, rows=ROWS, seed=0):
    resident = files.resident(dtype)
    for call in random_calls(files, dtype, rows, seed=seed):
        before = [tensor.clone() for tensor in (call.x_TD, call.ids_TK, call.weights_TK, call.residual_TD)]
        assert torch.equal(apply(bank, call), apply(resident, call))
        after = (call.x_TD, call.ids_TK, call.weights_TK, call.residual_TD)
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        bank.check_integrity()
    bank.close()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("slots", range(1, 8))
def test_bits_equal_resident_for_every_capacity(files, dtype, slots):
    assert_same_bits(files, dtype, files.offloaded(dtype, slots))


@pytest.mark.parametrize("slots", [1, 2, 4, 6])
def test_bits_equal_when_nothing_is_computed_before_misses_have_come(files, slots):
    bank = files.offloaded(torch.float32, slots)
    bank.compute_hits_first(False)
    assert_same_bits(files, torch.float32, bank)


@pytest.mark.parametrize("first", [True, False])
def test_hits_are_computed_before_misses_are_waited_for_unless_told_otherwise(files, monkeypatch, first):
    bank = files.offloaded(torch.float32, 6, over=InstantStore())
    bank.compute_hits_first(first)
    x_TD, weights_TK = torch.ones(1, files.hidden), torch.full((1, 3), 1 / 3)
    layer, events = files.moe_layers[0], []
    take, compute = bank._flow.take, bank._outputs.compute

    def rows(experts):
        return RoutedRows(layer, x_TD, torch.tensor([experts], dtype=torch.int32), weights_TK)

    bank.apply(rows([0, 1, 2]), x_TD)
    monkeypatch.setattr(bank._flow, "take", lambda run: events.append("take") or take(run))
    monkeypatch.setattr(
        bank._outputs,
        "compute",
        lambda x, ids, views, out: events.append(sorted(v.expert for v in views)) or compute(x, ids, views, out),
    )
    bank.apply(rows([0, 1, 5]), x_TD)
    assert events == ([[0, 1], "take", [5]] if first else ["take", [0, 1], [5]])
    bank.check_integrity()
    bank.close()


@pytest.mark.parametrize(("slots", "extra"), [(1, 1), (1, 4), (2, 5), (3, 2)])
def test_bits_equal_with_a_shared_remainder(files, slots, extra):
    assert_same_bits(files, torch.float32, files.offloaded(torch.float32, slots, extra=extra))


@pytest.mark.parametrize("stored", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("slots", [1, 3, 7])
def test_bits_equal_when_weights_are_converted(tmp_path, stored, slots):
    files = ExpertFiles(tmp_path, stored=stored, bias=True)
    for dtype in DTYPES:
        assert_same_bits(files, dtype, files.offloaded(dtype, slots))


def test_bits_equal_when_tensors_start_at_odd_bytes(tmp_path):
    files = ExpertFiles(tmp_path, start_bytes=4095, gap_bytes=3)
    assert_same_bits(files, torch.float32, files.offloaded(torch.float32, 2))


def test_more_than_one_chunk_and_thread_an_expert(files):
    assert_same_bits(files, torch.float32, files.offloaded(torch.float32, 2, num_threads=3, chunk_bytes=4096))


def test_the_largest_batch_comes_after_smaller_ones_and_before(files):
    assert_same_bits(files, torch.float32, files.offloaded(torch.float32, 2), rows=[1, 200, 3, 200, 1])


def test_experts_spread_over_files_and_apart_in_one_file(tmp_path):
    apart, split = tmp_path / "apart", tmp_path / "split"
    for folder, options in ((apart, {"gap_bytes": 20000, "start_bytes": 34}), (split, {"one_file": False})):
        folder.mkdir()
        files = ExpertFiles(folder, bias=True, **options)
        for slots in (1, 4):
            assert_same_bits(files, torch.bfloat16, files.offloaded(torch.bfloat16, slots))


def test_random_batches_with_poisoned_slots(files):
    chance = random.Random(3)
    for seed in range(12):
        slots, extra = chance.randint(1, 7), chance.randint(0, 5)
        floor = chance.randint(1, slots)
        bank = files.offloaded(torch.bfloat16, slots, extra=extra, floor=floor, chunk_bytes=4096)
        rows = [chance.choice([1, 1, 2, 4, 7, 64]) for _ in range(25)]
        assert_same_bits(files, torch.bfloat16, bank, rows=rows, seed=seed)


def test_a_store_error_ends_one_forward_and_leaves_the_bank_usable(files, monkeypatch):
    resident, bank = files.resident(torch.float32), files.offloaded(torch.float32, 4, chunk_bytes=4096)
    calls = random_calls(files, torch.float32, [4] * 12)
    for call in calls[:9]:
        apply(bank, call)
    real, chance, failing = os.preadv, random.Random(1), [True]

    def faulty(fd, buffers, offset):
        if failing[0] and chance.random() < 0.3:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, buffers, offset)

    monkeypatch.setattr(smoe.offload.files.os, "preadv", faulty)
    failures = []
    for call in calls * 4:
        try:
            assert torch.equal(apply(bank, call), apply(resident, call))
        except StoreError as error:
            failures.append(str(error))
        bank.check_integrity()
    assert failures
    assert all(re.match(rf"{files.paths()[0]}: reading \d+ bytes at offset \d+: Input/output", f) for f in failures)
    failing[0] = False
    for call in calls:
        assert torch.equal(apply(bank, call), apply(resident, call))
    bank.check_integrity()
    bank.close()


def test_a_file_shortened_while_running(tmp_path):
    files = ExpertFiles(tmp_path)
    bank = files.offloaded(torch.float32, 1)
    calls = random_calls(files, torch.float32, [1, 1])
    apply(bank, calls[0])
    os.truncate(files.paths()[0], files.paths()[0].stat().st_size // 2)
    with pytest.raises(StoreError, match=r"experts\.bin: reading \d+ bytes at offset \d+: the file changed"):
        apply(bank, calls[1])
    bank.check_integrity()
    bank.close()


def test_an_interrupt_leaves_the_bank_usable(files, monkeypatch):
    bank = files.offloaded(torch.float32, 2)
    call = random_calls(files, torch.float32, [4])[0]

    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(smoe.offload.outputs, "moe_pairs", interrupt)
        with pytest.raises(KeyboardInterrupt):
            apply(bank, call)
    bank.check_integrity()
    assert torch.equal(apply(bank, call), apply(files.resident(torch.float32), call))
    bank.close()


def test_stats_count_accesses_and_bound_bytes(files):
    bank = files.offloaded(torch.float32, files.num_experts)
    calls = random_calls(files, torch.float32, [4] * 6)
    for call in calls:
        apply(bank, call)
    stats = bank.stats()
    accesses = sum(len(call.ids_TK.unique()) for call in calls)
    assert stats.hits + stats.misses == accesses
    assert stats.cold_misses == sum(
        len(torch.cat([c.ids_TK for c in calls if c.layer == layer]).unique()) for layer in files.moe_layers
    )
    assert (stats.collision_misses, stats.evictions) == (0, 0)
    assert stats.peak_bytes <= stats.budget_bytes
    assert stats.peak_bytes == stats.cold_misses * (stats.budget_bytes // (files.num_experts * len(files.moe_layers)))
    assert stats.bytes_moved >= stats.cold_misses * files.source(1, 0).nbytes
    bank.close()


@pytest.mark.parametrize(
    "options",
    [{}, {"start_bytes": 4095}, {"stored": torch.float16}, {"bias": True}],
    ids=["as-is", "odd", "fp16", "bias"],
)
def test_weights_lie_in_their_slots(tmp_path, options):
    files = ExpertFiles(tmp_path, **options)
    bank = files.offloaded(torch.bfloat16, 3)
    for call in random_calls(files, torch.bfloat16, [4, 1]):
        apply(bank, call)
        for expert, slot in bank._residency.resident(call.layer).items():
            memory = bank._arena.tensor(slot)
            for tensor in bank._outputs.tensors(call.layer, slot):
                if tensor is not None:
                    inside = tensor.data_ptr() - memory.data_ptr()
                    assert 0 <= inside <= memory.numel() - tensor.numel() * tensor.itemsize, expert
    bank.close()
