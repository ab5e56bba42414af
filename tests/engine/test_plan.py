import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from smoe.core.config import EngineConfig
from smoe.core.errors import CapacityError, ConfigError
from smoe.engine import plan
from smoe.engine.build import build_runner
from smoe.engine.plan import plan_memory
from smoe.models.loading import Checkpoint, open_checkpoint

GIB = 2**30


@pytest.fixture(scope="module")
def builtin() -> Checkpoint:
    return open_checkpoint("builtin")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """free[0] is the memory that the plan sees."""
    values = [4 * GIB]
    monkeypatch.setattr(plan, "free_bytes", lambda: values[0])
    return values


def test_figures_of_the_builtin_model(builtin: Checkpoint, free: list[int]) -> None:
    found = plan_memory(builtin, EngineConfig(max_num_seqs=4))
    assert (found.dtype, found.max_model_len, found.num_moe_layers, found.num_experts) == ("bfloat16", 1024, 6, 64)
    assert found.expert_bytes == 3 * 192 * 48 * 2
    assert found.experts_total_bytes == 384 * found.expert_bytes
    assert (found.all_resident, found.experts_resident_bytes) == (True, found.experts_total_bytes)
    assert found.kv_rows == 4 * 1024
    assert found.kv_row_bytes == 6 * 2 * 2 * 32 * 2
    params = builtin.params(dtype=torch.bfloat16)
    assert found.dense_bytes == sum(p.numel() * p.itemsize for p in params.values())
    assert found.predicted_peak_rss_bytes > found.process_bytes + found.dense_bytes + found.experts_resident_bytes


@pytest.mark.parametrize(
    ("memory", "slots"), [("1", 6), ("16", 96), ("25%", 96), ("0.5", 192), ("64", 384), ("999", 384)]
)
def test_slots(builtin: Checkpoint, free: list[int], memory: str, slots: int) -> None:
    found = plan_memory(builtin, EngineConfig(expert_memory=memory))
    assert (found.expert_slots, found.slots_per_layer) == (slots, slots / 6)
    assert found.experts_resident_bytes >= slots * found.slot_bytes


def test_bytes_are_a_hard_bound(builtin: Checkpoint, free: list[int]) -> None:
    found = plan_memory(builtin, EngineConfig(expert_memory="3MB"))
    assert found.experts_resident_bytes <= 3_000_000 < found.experts_resident_bytes + found.slot_bytes


def test_auto_takes_what_is_free(builtin: Checkpoint, free: list[int]) -> None:
    config = EngineConfig(expert_memory="auto", max_num_seqs=1, max_num_batched_tokens=64)
    assert plan_memory(builtin, config).all_resident
    free[0] = 10_000_000
    found = plan_memory(builtin, config)
    assert not found.all_resident
    assert 6 <= found.expert_slots < 384
    assert found.new_bytes <= 10_000_000
    assert found.kv_rows >= 2


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ("0", "expert_memory: '0' (above zero"),
        ("0%", "expert_memory: '0%' (above zero"),
        ("lots", "expert_memory: 'lots' ("),
        ("100KB", "at least one expert a layer: 6 of 61440 bytes each"),
        ("0.001", "at least one expert a layer: 6 of 61440 bytes each"),
    ],
)
def test_a_budget_below_the_need_is_refused_before_anything_loads(
    builtin: Checkpoint, monkeypatch: pytest.MonkeyPatch, memory: str, message: str
) -> None:
    monkeypatch.setattr(Checkpoint, "params", lambda *_args, **_kwargs: pytest.fail("weights were read"))
    monkeypatch.setattr(Checkpoint, "read_layer", lambda *_args, **_kwargs: pytest.fail("experts were read"))
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_runner(EngineConfig(expert_memory=memory))


def test_more_than_is_free_is_refused(builtin: Checkpoint, free: list[int]) -> None:
    free[0] = 50_000_000
    with pytest.raises(ConfigError, match=r"expert_memory: 'all' \(21233664 bytes of experts, but \d+ bytes are free"):
        plan_memory(builtin, EngineConfig(max_num_batched_tokens=4096))
    assert plan_memory(builtin, EngineConfig(max_num_batched_tokens=64, max_num_seqs=1)).kv_rows == 1024
    free[0] = 2_905_728 + 21_233_664 + plan._workspace_bytes(builtin.spec, EngineConfig(max_num_seqs=1), 0)
    with pytest.raises(CapacityError, match="KV memory: 0 bytes are left"):
        plan_memory(builtin, EngineConfig(max_num_seqs=1))


def test_the_predicted_peak_holds() -> None:
    code = """
from smoe.core.config import EngineConfig
from smoe.engine.build import build_local_client
from smoe.engine.plan import plan_memory
from smoe.models.loading import open_checkpoint
from tests.engine.collect import request
config = EngineConfig(expert_memory="25%", max_num_seqs=8)
plan = plan_memory(open_checkpoint("builtin"), config)
client = build_local_client(config)
client.submit([request(str(i), range(5, 1000), max_tokens=3) for i in range(8)])
while client.poll():
    pass
peak = client.stats().peak_rss_bytes
client.shutdown()
assert plan.process_bytes < peak <= plan.predicted_peak_rss_bytes, (plan, peak)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("length", [1, 1025])
def test_context_beyond_the_model(builtin: Checkpoint, length: int) -> None:
    with pytest.raises(ConfigError, match=rf"max_model_len: {length} \(2 to the model's 1024 positions\)"):
        plan_memory(builtin, EngineConfig(max_model_len=length))


def test_cuda_is_refused_rather_than_ignored() -> None:
    with pytest.raises(ConfigError, match="device: 'cuda'"):
        build_runner(EngineConfig(device="cuda"))


def test_a_trace_file_that_cannot_be_written_is_refused_before_loading(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="record_routes"):
        build_runner(EngineConfig(record_routes=str(tmp_path / "no" / "trace")))
