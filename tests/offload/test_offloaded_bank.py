import errno
import os
import random

import pytest
import torch

import smoe.offload.bank
import smoe.offload.files
from smoe.core.errors import StoreError
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
