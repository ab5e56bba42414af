"""Experts read as residuals and rebuilt in their slots: the bits of resident ones, fewer bytes, faults in one line."""

import queue
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from smoe.core.config import EngineConfig
from smoe.core.draft import DraftConfig
from smoe.core.errors import StoreError
from smoe.core.link_model import LinkModel
from smoe.models.quantised_file import load_int4
from smoe.models.residual_file import ResidualFile, load_residuals
from smoe.offload.bank import OffloadedBank
from smoe.offload.build import POISON_VARIABLE, make_bank, planned_tiers
from smoe.offload.residual_store import ResidualStore, residual_layouts
from smoe.offload.shelf import ResidualForm, Shelf
from smoe.offload.slots import View
from smoe.offload.store import Read
from smoe.offload.tiers import open_tiers
from tests.models.parity import write_checkpoint
from tests.offload.stores import GatedStore, InstantStore, ShuffledStore
from tests.offload.test_exactness import _COMMON, FAMILIES, NUM_EXPERTS, Model, load, logits

GROUP_SIZE = 32
BF16 = torch.bfloat16
KINDS = ("qwen3-moe-stacked-bf16", "mixtral", "gpt-oss")


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POISON_VARIABLE, "1")


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, options, how = FAMILIES[request.param]
    config = AutoConfig.for_model(name, **(_COMMON | options))
    return write_checkpoint(config, tmp_path_factory.mktemp(request.param), **(how | {"dtype": BF16}))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, options, how = FAMILIES[KINDS[0]]
    return write_checkpoint(AutoConfig.for_model(name, **(_COMMON | options)), tmp_path_factory.mktemp("one"), **how)


def residuals(model: Model, folder: Path) -> ResidualFile:
    copy = load_int4(model.checkpoint, GROUP_SIZE, folder=folder)
    return load_residuals(model.checkpoint, copy, GROUP_SIZE, folder=folder)


def config(capacity: str, **more: str) -> EngineConfig:
    draft = DraftConfig(model="int4", group_size=GROUP_SIZE, residual=True)
    return EngineConfig(expert_memory=capacity, draft=draft, **more)


@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
def test_every_capacity_has_the_bits_of_a_resident_run(folder: Path, dtype: torch.dtype) -> None:
    model = load(folder, dtype)
    file, run = residuals(model, folder.parent / "kept"), {"sequences": 2, "prompt": 6, "steps": 6}
    expected = logits(model, model.bank("all"), **run)
    for slots in range(1, NUM_EXPERTS + 1):
        bank = make_bank(model.checkpoint, config(str(slots)), dtype, residuals=file)
        assert isinstance(bank, OffloadedBank)
        assert torch.equal(logits(model, bank, **run), expected), slots
        stats, store = bank.stats(), bank._store.stats()
        bank.close()
        assert stats.peak_bytes <= stats.budget_bytes
        assert store.bytes_read == store.reads * 4096 * (stats.bytes_moved // store.reads // 4096)
        assert (store.failures, store.links[-1].transfers) == (0, store.reads)


def test_what_is_read_is_the_residual(tmp_path: Path) -> None:
    model = load("builtin", BF16)
    file = residuals(model, tmp_path)
    bank = make_bank(model.checkpoint, config("25%"), BF16, residuals=file)
    assert isinstance(bank, OffloadedBank)
    assert torch.equal(
        logits(model, bank, sequences=1, prompt=9, steps=3),
        logits(model, model.bank("all"), sequences=1, prompt=9, steps=3),
    )
    stats = bank.stats()
    bank.close()
    expert = model.checkpoint.expert_source(0, 0).nbytes
    assert stats.disk_transfers > 50
    assert stats.bytes_moved < 0.67 * stats.disk_transfers * expert  # whole pages of few: 32 KiB of 54


def test_a_slot_takes_little_more_than_the_expert(one: Path) -> None:
    checkpoint = load(one, BF16).checkpoint
    plan = planned_tiers(checkpoint, config("2"), BF16)
    assert isinstance(plan.above, ResidualForm)
    assert plan.above.slot_bytes <= Shelf(checkpoint.spec, checkpoint.expert_source, BF16).slot_bytes + 2 * 4096
    assert plan.above.staging_bytes == plan.host_bytes == 0


def test_a_declared_link_carries_the_residual(one: Path) -> None:
    model = load(one, BF16)
    bank = make_bank(
        model.checkpoint, config("1", expert_link="1GB/s+2ms"), BF16, residuals=residuals(model, one.parent / "kept")
    )
    assert isinstance(bank, OffloadedBank)
    logits(model, bank, sequences=1, prompt=3, steps=1)
    stats = bank._store.stats()
    bank.close()
    assert [link.name for link in stats.links] == ["disk", "rebuild"]
    assert stats.links[0].emulated
    assert stats.links[0].busy_s >= stats.reads * LinkModel(1e9, latency_s=2e-3).transfer_s(4096)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_in_any_order_of_arrival(one: Path, num_threads: int) -> None:
    model = load(one, BF16)
    expected = logits(model, model.bank("all"), sequences=2, prompt=5, steps=4)
    file = residuals(model, one.parent / "kept")
    plan = planned_tiers(model.checkpoint, config("4"), BF16)
    for seed in range(3):
        bank = make_bank(model.checkpoint, config("4"), BF16, residuals=file)
        assert isinstance(bank, OffloadedBank)
        bank._store.close()
        store = ResidualStore(ShuffledStore(seed), plan.above, file, residual_layouts(file), num_threads=num_threads)
        bank._store = bank._transfers._store = store
        assert torch.equal(logits(model, bank, sequences=2, prompt=5, steps=4), expected)
        bank.close()


class Desk:
    """Experts asked of a store one by one, without a bank."""

    def __init__(self, model: Model, file: ResidualFile, below: InstantStore) -> None:
        plan = planned_tiers(model.checkpoint, config("2"), BF16)
        assert isinstance(plan.above, ResidualForm)
        self.form, self.ended = plan.above, queue.SimpleQueue[Read]()
        self.store = ResidualStore(below, plan.above, file, residual_layouts(file), num_threads=1)

    def ask(self, layer: int, expert: int, *, urgent: bool = True) -> None:
        memory = torch.full((self.form.slot_bytes,), 0xFF, dtype=torch.uint8)
        layout, view = self.form.layout(layer, expert), View(layer, expert, 0, 0)
        self.store.submit(Read(layout, memory.numpy().data, view, self.ended.put, urgent=urgent))

    def take(self) -> Read:
        return self.ended.get(timeout=30)


def test_a_piece_that_was_changed_fails_alone_and_says_what_to_do(one: Path, tmp_path: Path) -> None:
    model = load(one, BF16)
    file = residuals(model, tmp_path)
    layer = model.checkpoint.spec.moe_layers[1]
    content = bytearray(file.path.read_bytes())
    content[file.pieces[layer, 2].offset + 11] ^= 0x10
    file.path.write_bytes(content)
    desk = Desk(model, file, InstantStore())
    desk.ask(layer, 2)
    error = desk.take().error
    assert isinstance(error, StoreError)
    assert str(error).startswith(f"{file.path}: expert 2 of layer {layer}: ")
    assert str(error).endswith("delete the file, and it is made again")
    desk.ask(layer, 1)
    assert desk.take().error is None
    assert desk.store.stats().failures == 1
    desk.store.close()


def test_a_read_that_fails_is_handed_on(one: Path) -> None:
    model = load(one, BF16)
    desk = Desk(model, residuals(model, one.parent / "kept"), InstantStore(refuses=lambda read: read.view[1] == 3))
    for expert in (3, 4):
        desk.ask(model.checkpoint.spec.moe_layers[0], expert)
    errors = {read.view[1]: read.error for read in (desk.take(), desk.take())}
    assert isinstance(errors[3], StoreError)
    assert errors[4] is None
    desk.store.close()
    desk.store.close()


def test_closing_ends_what_has_arrived(one: Path) -> None:
    model = load(one, BF16)
    desk = Desk(model, residuals(model, one.parent / "kept"), GatedStore(lambda key: False))
    for expert in range(NUM_EXPERTS):
        desk.ask(model.checkpoint.spec.moe_layers[0], expert, urgent=expert % 2 == 0)
    desk.store.close()
    assert {desk.take().view[1] for _ in range(NUM_EXPERTS)} == set(range(NUM_EXPERTS))


def test_a_file_that_has_gone_is_an_error_before_anything_runs(one: Path, tmp_path: Path) -> None:
    model = load(one, BF16)
    file = residuals(model, tmp_path)
    file.path.unlink()
    with pytest.raises(StoreError, match=r"residual\.safetensors: No such file"):
        open_tiers(planned_tiers(model.checkpoint, config("2"), BF16), residuals=file)
