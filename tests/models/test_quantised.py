"""Experts in 4 bits: their sizes known beforehand, streamed making, and a file on disk that is never trusted."""

import logging
import struct
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from smoe.core.errors import ConfigError
from smoe.kernels import ExpertTensors, Int4Tensors
from smoe.kernels.int4 import dequantise_expert, quantise_expert
from smoe.models.loading import Checkpoint, open_checkpoint
from smoe.models.quantised import expert_of, int4_nbytes, quantise_layers
from smoe.models.quantised_file import cache_file, load_int4
from tests.models.loading_folders import GPT_OSS, QWEN3, make_folder
from tests.models.spoiled_files import an_older_form, cut, rewritten

CONFIGS = {"split": QWEN3, "gptoss": GPT_OSS}


@pytest.fixture(params=CONFIGS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    make_folder(tmp_path / "model", CONFIGS[request.param], layout=request.param, dtype=torch.bfloat16)
    return open_checkpoint(tmp_path / "model")


def same(layers: dict[int, Int4Tensors], others: dict[int, Int4Tensors]) -> bool:
    pairs = [(a, b) for layer, parts in layers.items() for a, b in zip(parts, others[layer], strict=True)]
    return layers.keys() == others.keys() and all((a is b) or torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_each_expert_is_its_own_weights_in_4_bits(checkpoint: Checkpoint, group_size: int, tmp_path: Path) -> None:
    layers, spec = load_int4(checkpoint, group_size, folder=tmp_path / "cache"), checkpoint.spec
    assert tuple(layers) == spec.moe_layers
    for layer, experts in layers.items():
        for expert in range(spec.moe(layer).router.num_experts):
            weights = checkpoint.read_expert(layer, expert, dtype=torch.float32)
            expected = quantise_expert(weights, group_size)
            for part, wanted in zip(expert_of(experts, expert), expected, strict=True):
                assert (part is None and wanted is None) or torch.equal(part, wanted)
            back = dequantise_expert(expert_of(experts, expert), spec.hidden, spec.moe(layer).ffn, group_size)
            for ours, theirs in zip(back[:3], weights[:3], strict=True):
                assert float((ours - theirs.float()).norm()) < 0.12 * float(theirs.float().norm())


@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_the_size_is_known_before_anything_is_read(checkpoint: Checkpoint, group_size: int, tmp_path: Path) -> None:
    layers = load_int4(checkpoint, group_size, folder=tmp_path / "cache")
    taken = sum(part.nbytes for experts in layers.values() for part in experts if part is not None)
    assert int4_nbytes(checkpoint.spec, group_size) == taken


def test_an_unknown_group_size_is_refused_before_anything_is_read(checkpoint: Checkpoint) -> None:
    with pytest.raises(ConfigError, match=r"draft_group_size: 48 \(one of 32, 64, 128\)"):
        int4_nbytes(checkpoint.spec, 48)


def test_one_expert_is_in_memory_at_a_time(checkpoint: Checkpoint) -> None:
    given: list[weakref.ref[torch.Tensor]] = []

    def read(layer: int, expert: int) -> ExpertTensors:
        assert not any(one() is not None for one in given), "one before this is still held"
        tensors = checkpoint.read_expert(layer, expert, dtype=torch.float32)
        given.append(weakref.ref(tensors.gate))
        return tensors

    layers = dict(quantise_layers(checkpoint.spec, 32, read))
    assert len(given) == sum(len(experts.gate) for experts in layers.values())


def test_the_second_time_it_comes_from_the_file(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = load_int4(checkpoint, 32, folder=tmp_path / "cache")
    monkeypatch.setattr(Checkpoint, "read_expert", None)
    assert same(load_int4(checkpoint, 32, folder=tmp_path / "cache"), made)
    (file,) = (tmp_path / "cache").iterdir()
    assert file == cache_file(checkpoint, 32, tmp_path / "cache")
    assert set(load_file(file)) == {
        f"layers.{layer}.experts.{field}"
        for layer, parts in made.items()
        for field, part in zip(Int4Tensors._fields, parts, strict=True)
        if part is not None
    }


def test_the_cache_lies_where_the_system_says(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    folder = Path("/somewhere/smoe/int4")
    assert cache_file(checkpoint, 64) == folder / f"{checkpoint.fingerprint}-g64-v1.safetensors"


def _longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _no_header(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 10) + b"{" + b" " * 9)


def _nan_scale(path: Path) -> None:
    rewritten(path, lambda t: t["layers.0.experts.up_scales"].view(-1)[-1:].fill_(torch.nan))


def _missing(path: Path) -> None:
    rewritten(path, lambda t: t.pop("layers.0.experts.up_scales"))


def _another_shape(path: Path) -> None:
    rewritten(path, lambda t: t.update({"layers.0.experts.up": t["layers.0.experts.up"][:, :-1].contiguous()}))


def _another_model(path: Path) -> None:
    rewritten(path, lambda t: None, fingerprint="0123456789abcdef")


def _another_group_size(path: Path) -> None:
    rewritten(path, lambda t: None, group_size="64")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut, "truncated"),
        (_longer, "its header describes"),
        (_no_header, "broken safetensors header"),
        (_nan_scale, "layers.0.experts.up_scales holds values that are not finite"),
        (_missing, "tensor layers.0.experts.up_scales is missing"),
        (_another_shape, "layers.0.experts.up is torch.uint8"),
        (_another_model, "fingerprint: '0123456789abcdef'"),
        (_another_group_size, "group_size: '64'"),
        (an_older_form, "version: '0'"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_file_that_is_not_right_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None], message: str
) -> None:
    make_folder(tmp_path / "model", dtype=torch.bfloat16)
    checkpoint, folder = open_checkpoint(tmp_path / "model"), tmp_path / "cache"
    made, path = load_int4(checkpoint, 32, folder=folder), cache_file(checkpoint, 32, folder)
    whole = path.read_bytes()
    spoil(path)
    assert path.read_bytes() != whole
    with caplog.at_level(logging.WARNING):
        again = load_int4(checkpoint, 32, folder=folder)
    assert same(again, made)
    (record,) = caplog.records
    assert message in record.getMessage()
    assert str(path) in record.getMessage()
    assert "\n" not in record.getMessage()
    assert path.read_bytes() == whole


def test_no_room_for_the_file_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path / "model")
    checkpoint = open_checkpoint(tmp_path / "model")
    (tmp_path / "taken").write_text("a file where a folder should be")
    with caplog.at_level(logging.WARNING):
        assert load_int4(checkpoint, 32, folder=tmp_path / "taken")
    assert "cannot keep the 4-bit experts" in caplog.text
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("", (), {"free": 10}))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert load_int4(checkpoint, 32, folder=tmp_path / "full")
    assert "10 are free" in caplog.text
    assert not list((tmp_path / "full").iterdir())
