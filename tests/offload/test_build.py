import os
import re

import pytest
import torch

from smoe.core.config import EngineConfig
from smoe.core.draft import DraftConfig
from smoe.core.errors import ConfigError
from smoe.core.expert_memory import ExpertMemory
from smoe.models.bank import ResidentBank, RoutedRows
from smoe.models.loading import open_checkpoint
from smoe.offload import build
from smoe.offload.bank import OffloadedBank
from smoe.offload.shelf import Shelf
from tests.offload.support import ExpertFiles

NUM_LAYERS, NUM_EXPERTS = 6, 64


@pytest.fixture(scope="module")
def checkpoint():
    return open_checkpoint("builtin")


@pytest.fixture(scope="module")
def slot_bytes(checkpoint):
    return Shelf(checkpoint.spec, checkpoint.expert_source, torch.bfloat16).slot_bytes


def made(checkpoint, expert_memory, **options):
    bank = build.make_bank(checkpoint, EngineConfig(expert_memory=expert_memory), torch.bfloat16, **options)
    bank.close()
    return bank


@pytest.mark.parametrize(
    ("expert_memory", "slots"),
    [("1", 6), ("17", 102), ("64", 384), ("1000", 384), ("25%", 96), ("0.1", 38), ("1.0", 384)],
)
def test_slots_of_a_budget(checkpoint, slot_bytes, expert_memory, slots):
    bank = made(checkpoint, expert_memory)
    assert isinstance(bank, OffloadedBank)
    assert bank.stats().budget_bytes == slots * slot_bytes


def test_a_budget_in_bytes_is_a_hard_bound(checkpoint, slot_bytes):
    for given in (6 * slot_bytes, 7 * slot_bytes - 1, 5_000_000):
        assert given - slot_bytes < made(checkpoint, f"{given}B").stats().budget_bytes <= given


def test_staging_is_inside_a_budget_in_bytes(tmp_path):
    files = ExpertFiles(tmp_path, stored=torch.float16)
    shelf = Shelf(files.spec, files.source, torch.bfloat16)
    assert shelf.staging_bytes > 0
    least = shelf.staging_bytes + 3 * shelf.slot_bytes
    assert shelf.slots(ExpertMemory.parse(f"{least}B"), free_bytes=0) == 3
    with pytest.raises(ConfigError, match=rf"3 of {shelf.slot_bytes} bytes each, {least} in all"):
        shelf.slots(ExpertMemory.parse(f"{least - 1}B"), free_bytes=0)


def test_auto_takes_what_is_free(checkpoint, slot_bytes):
    assert made(checkpoint, "auto", free_bytes=100 * slot_bytes).stats().budget_bytes == 100 * slot_bytes
    assert isinstance(made(checkpoint, "auto", free_bytes=384 * slot_bytes), ResidentBank)
    assert isinstance(made(checkpoint, "all"), ResidentBank)


@pytest.mark.parametrize(
    ("expert_memory", "message"),
    [
        ("100KB", r"expert_memory: '100000 bytes' \(at least one expert a layer: 6 of \d+ bytes each, \d+ in all\)"),
        ("1%", r"expert_memory: '0\.01 fraction' \(at least one expert a layer: "),
        ("auto", r"expert_memory: '0 bytes free' \(at least one expert a layer: "),
    ],
)
def test_less_than_one_slot_a_layer_fails_before_anything_is_read(checkpoint, monkeypatch, expert_memory, message):
    def fail(*args):
        raise AssertionError("opened a file")

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(ConfigError) as caught:
        made(checkpoint, expert_memory)
    assert re.match(message, str(caught.value)), caught.value


@pytest.mark.parametrize("text", ["0", "0%", "0GB", "-1", "", "many"])
def test_budgets_that_are_none(text):
    with pytest.raises(ConfigError, match=r"^expert_memory: "):
        EngineConfig(expert_memory=text)


def test_nothing_is_left_after_close(checkpoint):
    import threading

    before = (threading.active_count(), len(os.listdir("/proc/self/fd")))
    for _ in range(3):
        made(checkpoint, "4")
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


@pytest.mark.parametrize(
    ("policy", "draft", "evict"),
    [
        (None, "int4", "utility"),
        ("evict=lru,prefetch=none,miss=wait", "int4", "lru"),
        (None, "ngram", "lru"),
        (None, None, "lru"),
    ],
)
def test_a_self_draft_has_an_eviction_of_its_own_unless_one_is_told(policy, draft, evict):
    told = {} if policy is None else {"expert_policy": policy}
    config = EngineConfig(expert_memory="50%", draft=None if draft is None else DraftConfig(model=draft), **told)
    assert build.live_policy(config, ("disk",)).evict.name == evict


@pytest.mark.parametrize("draft", [None, "int4", "ngram"])
def test_windows_roll(checkpoint, draft):
    config = EngineConfig(expert_memory="60%", draft=None if draft is None else DraftConfig(model=draft))
    bank = build.make_bank(checkpoint, config, torch.bfloat16)
    ids_TK = torch.arange(48, dtype=torch.int32).view(6, 8)
    x_TD = torch.zeros(6, checkpoint.spec.hidden, dtype=torch.bfloat16)
    awaited, begin = [], bank._flow.begin
    bank._flow.begin = lambda views: awaited.append(len(views)) or begin(views)
    bank.apply(RoutedRows(0, x_TD, ids_TK, torch.full((6, 8), 0.125)), x_TD)
    bank.close()
    assert max(awaited) == build.ROLLING if draft else max(awaited) >= 38, "a few, or all the slots of the layer"
