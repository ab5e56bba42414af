"""What a tier takes, what it refuses, and that nothing of it is left behind."""

import os
import threading

import pytest
import torch

from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError, StoreError
from smoe.core.expert_tier import ExpertTier
from smoe.models.loading import open_checkpoint
from smoe.offload import build
from smoe.offload.host import HostMemory
from smoe.offload.host_store import HostStore
from smoe.offload.shelf import Shelf, SlotForm
from smoe.offload.store import DiskStore
from smoe.offload.tiers import open_tiers, plan_tiers
from tests.offload.support import ExpertFiles

NUM_EXPERTS = 21  # of all layers of ExpertFiles


def planned(files: ExpertFiles, text: str, dtype: torch.dtype = torch.bfloat16):
    return plan_tiers(Shelf(files.spec, files.source, dtype), ExpertTier.parse(text))


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16], ids=str)
def test_bytes_are_a_hard_bound(tmp_path, stored):
    files = ExpertFiles(tmp_path, stored=stored)
    shelf = planned(files, "disk").files
    for slots in (3, 4, 11, 20):
        least = shelf.staging_bytes + slots * shelf.slot_bytes
        for given in (least, least + shelf.slot_bytes - 1):
            plan = planned(files, f"host:{given}B")
            assert (plan.host_slots, plan.host_bytes, plan.tiers) == (slots, least, ("disk", "host"))
            store, memory = open_tiers(plan)
            assert isinstance(store, HostStore)
            assert isinstance(memory, HostMemory)
            assert store.stats().budget_bytes == least
            store.close()


def test_room_for_all_is_all_of_them(tmp_path):
    files = ExpertFiles(tmp_path)
    plan = planned(files, "host:1GB")
    assert (plan.host_slots, plan.tiers) == (NUM_EXPERTS, ("host",))
    assert plan.host_bytes == planned(files, "host").host_bytes
    threads, handles = threading.active_count(), len(os.listdir("/proc/self/fd"))
    store, memory = open_tiers(plan)
    assert memory is not None
    assert memory.hold(2, range(7)) == set(range(7))
    # The files are closed and their threads gone: only the one that copies is left.
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads + 1, handles)
    assert store.stats().peak_bytes == store.stats().budget_bytes
    store.close()
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, handles)


def test_disk_alone_keeps_nothing(tmp_path):
    plan = planned(ExpertFiles(tmp_path), "disk")
    store, memory = open_tiers(plan)
    assert isinstance(store, DiskStore)
    assert (memory, plan.host_bytes, plan.above) == (None, 0, plan.files)
    store.close()


def test_less_than_one_expert_a_layer_is_refused(tmp_path):
    files = ExpertFiles(tmp_path)
    slot_bytes = planned(files, "disk").files.slot_bytes
    with pytest.raises(ConfigError, match=rf"^expert_tier: .*least one expert a layer: 3 of {slot_bytes} bytes each"):
        planned(files, f"host:{3 * slot_bytes - 1}B")


def test_converted_experts_are_staged_once(tmp_path):
    files = ExpertFiles(tmp_path, stored=torch.float16)
    plan = planned(files, "host:60kB")
    assert plan.files.staging_bytes > 0
    assert isinstance(plan.above, SlotForm)
    assert plan.above.staging_bytes == 0
    assert not any(plan.above.is_staged(2, expert) for expert in range(7))


def test_a_file_that_cannot_be_read_leaves_nothing_behind(tmp_path):
    files = ExpertFiles(tmp_path)
    plan = planned(files, "host")
    with open(files.paths()[0], "r+b") as file:
        file.truncate(5000)
    threads, handles = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with pytest.raises(StoreError, match="has 5000 bytes, expert weights need"):
        open_tiers(plan)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, handles)


@pytest.mark.parametrize("miss", ["compute", "auto"])
def test_computing_in_place_needs_a_host_tier(miss):
    checkpoint, policy = open_checkpoint("builtin"), f"evict=lru,prefetch=none,miss={miss}"
    for tier in ("host", "host:5MB"):
        config = EngineConfig(expert_memory="25%", expert_tier=tier, expert_policy=policy)
        build.make_bank(checkpoint, config, torch.bfloat16).close()
    config = EngineConfig(expert_memory="25%", expert_policy=policy)
    with pytest.raises(ConfigError, match=r"policies.miss: .*experts are kept in disk"):
        build.make_bank(checkpoint, config, torch.bfloat16)
