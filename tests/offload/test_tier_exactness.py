"""Bit-equal logits whatever tiers experts come through: host memory with all of them, or a part before the disk."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from smoe.core.config import DEFAULT_POLICY, EngineConfig
from smoe.offload.bank import OffloadedBank
from smoe.offload.build import POISON_VARIABLE, make_bank
from smoe.offload.shelf import Shelf
from tests.models.parity import write_checkpoint
from tests.offload.test_exactness import _COMMON, FAMILIES, NUM_EXPERTS, Model, load, logits

SOME = ["deepseek-v3", "gpt-oss", "qwen3-next"]
POLICIES = [
    DEFAULT_POLICY,
    "evict=least-stale:cyclic,prefetch=gate:threshold=0.6,miss=wait",
    "evict=random,prefetch=follow,miss=wait",
    "evict=lru,prefetch=none,miss=compute",
    "evict=utility,prefetch=gate,miss=cpu,admit=background:beta=0.3",
    "evict=lru,miss=auto",
]


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POISON_VARIABLE, "1")


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, options, how = FAMILIES[request.param]
    config = AutoConfig.for_model(name, **(_COMMON | options))
    return write_checkpoint(config, tmp_path_factory.mktemp(request.param), **how)


def host_bytes(model: Model, slots_a_layer: int) -> str:
    """A tier whose host memory has so many slots a layer, and half a slot too little for another one."""
    shelf = Shelf(model.checkpoint.spec, model.checkpoint.expert_source, model.dtype)
    slots = slots_a_layer * len(shelf.spec.moe_layers)
    return f"host:{shelf.staging_bytes + slots * shelf.slot_bytes + shelf.slot_bytes // 2}B"


def assert_same_bits(model: Model, tiers: list[str], capacities: list[str], policies: list[str], **run: int) -> None:
    expected = logits(model, model.bank("all"), **run)
    assert expected.isfinite().all()
    for tier in tiers:
        for capacity in capacities:
            for policy in policies:
                config = EngineConfig(expert_memory=capacity, expert_tier=tier, expert_policy=policy)
                bank = make_bank(model.checkpoint, config, model.dtype)
                assert isinstance(bank, OffloadedBank)
                try:
                    actual, stats = logits(model, bank, **run), bank.stats()
                finally:
                    bank.close()
                assert 0 < stats.peak_bytes <= stats.budget_bytes
                assert (stats.disk_bytes > 0) == (tier != "host")
                assert torch.equal(actual, expected), f"tier {tier}, capacity {capacity}, {policy}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_family(folder: Path, dtype: torch.dtype) -> None:
    model = load(folder, dtype)
    tiers = ["host", host_bytes(model, 1), host_bytes(model, NUM_EXPERTS // 2)]
    assert_same_bits(model, tiers, ["2"], [DEFAULT_POLICY], sequences=2, prompt=7, steps=8)


@pytest.mark.parametrize("name", SOME)
def test_policies_and_capacities(name: str, tmp_path: Path) -> None:
    family, options, how = FAMILIES[name]
    model = load(write_checkpoint(AutoConfig.for_model(family, **(_COMMON | options)), tmp_path, **how), torch.float32)
    tiers = ["host", host_bytes(model, 1), host_bytes(model, NUM_EXPERTS - 1)]
    assert_same_bits(model, tiers, ["1", "0.4", "6"], POLICIES, sequences=3, prompt=5, steps=4)


@pytest.mark.parametrize("slots", [0, 1, 7])
def test_the_built_in_model(slots: int) -> None:
    model = load("builtin", torch.bfloat16)
    tier = "host" if slots == 0 else host_bytes(model, slots)
    assert_same_bits(model, [tier], ["7", "25%"], POLICIES[1:2], sequences=1, prompt=9, steps=16)
