"""Resident memory of a process that uses far more expert bytes than its budget."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from smoe.core.expert_tier import ExpertTier
from smoe.models.bank import RoutedRows
from smoe.models.loading import ExpertSource, TensorRange
from smoe.models.spec import DecoderSpec, GQASpec, LayerSpec, MoESpec, RouterSpec
from smoe.offload.bank import OffloadedBank
from smoe.offload.policies.catalog import Geometry
from smoe.offload.policies.spec import parse_policies
from smoe.offload.shelf import Shelf
from smoe.offload.tiers import open_tiers, plan_tiers

path, stored, tier = sys.argv[1], getattr(torch, sys.argv[2]), sys.argv[3]
hidden, ffn, experts, slots = 1024, 1024, 96, 8
router = RouterSpec(num_experts=experts, top_k=4, scoring="softmax", normalize=True)
attention = GQASpec(num_heads=1, num_kv_heads=1, head_dim=8, scale=1.0, rope=None)
layer = LayerSpec(attention=attention, mlp=MoESpec(router=router, ffn=ffn))
spec = DecoderSpec(family="test", hidden=hidden, vocab=8, layers=(layer,), norm="rms", norm_eps=1e-6, tied_head=True,
                   max_positions=8)
size = 2 * hidden * ffn
open(path, "wb").truncate(1000 + 3 * size * experts)

def source(layer, expert):
    parts = {name: TensorRange(path, 1000 + (3 * expert + i) * size, size, stored, (ffn, hidden), name)
             for i, name in enumerate(("gate", "up", "down"))}
    return ExpertSource(layer, expert, "rows", parts)

peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
shelf = Shelf(spec, source, torch.bfloat16)
before = peak()
policies = parse_policies("").build(Geometry(layers=(0,), num_experts=experts, top_k=4))
plan = plan_tiers(shelf, ExpertTier.parse(tier))
bank = OffloadedBank(plan.above, open_tiers(plan)[0], policies, num_slots=slots, floor=slots)
x = torch.ones(1, hidden, dtype=torch.bfloat16)
for first in range(0, experts, 4):
    ids = torch.arange(first, first + 4, dtype=torch.int32).view(1, 4)
    assert torch.equal(bank.apply(RoutedRows(0, x, ids, torch.full((1, 4), 0.25)), x), x)
stats = bank.stats()
assert stats.cold_misses == experts and stats.bytes_moved >= 3 * size * experts
assert stats.peak_bytes == stats.budget_bytes
print(peak() - before, stats.budget_bytes)
"""


EXPERT_BYTES = 3 * 2 * 1024 * 1024


@pytest.mark.parametrize(
    ("stored", "margin_bytes", "tier"),
    [
        ("bfloat16", 24 << 20, "disk"),
        ("float16", 32 << 20, "disk"),
        ("float16", 32 << 20, "host:150MB"),
        ("bfloat16", 24 << 20, "host"),
    ],
)
def test_peak_memory_is_the_budget_and_little_more(tmp_path, stored, margin_bytes, tier):
    """The margin covers threads, kernels' scratch and, when weights are converted, one expert on its way."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "experts"), stored, tier]
    grown, budget = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    most = {"disk": 0, "host:150MB": 150_000_000, "host": 97 * EXPERT_BYTES}[tier]
    assert budget < (100 << 20) + most
    assert grown < budget + margin_bytes
