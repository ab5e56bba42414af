"""Peak memory of a process that loads: what it keeps, and 300 MB for the interpreter, torch and pieces in flight."""

import subprocess
import sys

import pytest
import torch

from tests.models.loading_folders import QWEN3, tensor_shapes, write_config, write_sparse

ALLOWANCE = 300_000_000
# What loading itself may take beside the weights it keeps; the rest of the allowance is interpreter and libraries.
IN_FLIGHT = 50_000_000
WIDE = QWEN3 | {
    "hidden_size": 1024,
    "moe_intermediate_size": 512,
    "intermediate_size": 2048,
    "num_experts": 48,
    "vocab_size": 4000,
    "num_hidden_layers": 4,
}
PEAK = """
import re
def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""
OPEN = """
import sys, torch
from transformers import AutoConfig
from smoe.models.loading import open_checkpoint
before = peak()
checkpoint = open_checkpoint(sys.argv[1])
dtype = getattr(torch, sys.argv[2])
params = checkpoint.params(dtype=dtype)
kept = sum(p.nbytes for p in params.values())
"""
# One slot: each expert takes the place of the one before.
OFFLOADED = """
for layer in checkpoint.spec.moe_layers:
    for e in range(checkpoint.spec.moe(layer).router.num_experts):
        slot = None
        slot = checkpoint.read_expert(layer, e, dtype=dtype)
kept += checkpoint.expert_source(0, 0).assembled_nbytes(dtype)
"""
RESIDENT = """
layers = [checkpoint.read_layer(layer, dtype=dtype) for layer in checkpoint.spec.moe_layers]
kept += sum(t.nbytes for experts in layers for expert in experts for t in expert if t is not None)
"""


def measure(folder, dtype, body):
    script = PEAK + OPEN + body + "print(kept, before, peak())"
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder), dtype], capture_output=True, text=True, check=True
    )
    return map(int, done.stdout.split())


def assert_in_budget(kept, before, peak):
    assert peak < before + kept + IN_FLIGHT
    if torch.version.cuda is None:
        assert peak < kept + ALLOWANCE


@pytest.mark.skipif(sys.platform != "linux", reason="reads VmHWM")
@pytest.mark.parametrize(("layout", "compute"), [("split", "float32"), ("stacked", "bfloat16")])
def test_offloaded_load_stays_in_the_budget(tmp_path, layout, compute):
    write_config(tmp_path, WIDE)
    total = write_sparse(tmp_path, tensor_shapes(tmp_path, layout=layout), "F32", 4)
    kept, before, peak = measure(tmp_path, compute, OFFLOADED)
    assert total > 2 * (kept + ALLOWANCE)
    assert_in_budget(kept, before, peak)


@pytest.mark.skipif(sys.platform != "linux", reason="reads VmHWM")
@pytest.mark.parametrize(("dtype", "itemsize"), [("F32", 4), ("BF16", 2)])
def test_resident_load_stays_in_the_budget(tmp_path, dtype, itemsize):
    """In bf16 the fp32 folder is twice as large as what is kept."""
    write_config(tmp_path, WIDE)
    write_sparse(tmp_path, tensor_shapes(tmp_path), dtype, itemsize)
    kept, before, peak = measure(tmp_path, "bfloat16", RESIDENT)
    assert kept > 400_000_000
    assert_in_budget(kept, before, peak)
