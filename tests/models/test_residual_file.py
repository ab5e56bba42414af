"""Experts as residuals of their 4-bit copy: the same bits, fewer bytes, and a file that is never trusted."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from smoe.core.errors import ConfigError, StoreError
from smoe.kernels import Int4Tensors, alloc_huge
from smoe.kernels.int4 import quantise_expert
from smoe.models.loading import Checkpoint, open_checkpoint
from smoe.models.quantised import expert_of
from smoe.models.quantised_file import cache_file, load_int4
from smoe.models.residual import Piece, check_dtypes, pack_expert, room, unpack_expert
from smoe.models.residual_file import ResidualFile, load_residuals, residual_path
from tests.models.loading_folders import GPT_OSS, QWEN3, make_folder
from tests.models.spoiled_files import an_older_form, cut, rewritten

CONFIGS = {"split": QWEN3 | {"hidden_size": 96, "moe_intermediate_size": 70}, "gptoss": GPT_OSS}
BF16 = torch.bfloat16


@pytest.fixture(params=CONFIGS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    make_folder(tmp_path / "model", CONFIGS[request.param], layout=request.param, dtype=BF16)
    return open_checkpoint(tmp_path / "model")


@pytest.fixture
def split(tmp_path: Path) -> Checkpoint:
    make_folder(tmp_path / "model", CONFIGS["split"], dtype=BF16)
    return open_checkpoint(tmp_path / "model")


def made(checkpoint: Checkpoint, folder: Path, group_size: int = 32) -> ResidualFile:
    return load_residuals(checkpoint, load_int4(checkpoint, group_size, folder=folder), group_size, folder=folder)


def rebuilt(checkpoint: Checkpoint, key: tuple[int, int], piece: Piece, copy: Int4Tensors, group_size: int) -> None:
    """Rebuilds the expert in memory that is NaN besides, and compares bits."""
    source = checkpoint.expert_source(*key)
    memory = alloc_huge(room(source)).fill_(0xFF)
    start = len(memory) - -(-len(piece.content) // 4096) * 4096
    memory[start : start + len(piece.content)] = piece.content
    content = memory[start : start + len(piece.content)]
    unpack_expert(memory, piece._replace(content=content), source, BF16, copy, group_size)
    expected = checkpoint.read_expert(*key, dtype=BF16)
    raw = torch.cat([getattr(expected, name).reshape(-1) for name in source.shapes()]).view(torch.uint8)
    assert torch.equal(memory[: len(raw)], raw)


@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_every_expert_is_rebuilt_from_the_file(checkpoint: Checkpoint, group_size: int, tmp_path: Path) -> None:
    file = made(checkpoint, tmp_path / "cache", group_size)
    content, total = file.path.read_bytes(), 0
    for key, kept in file.pieces.items():
        raw = torch.frombuffer(bytearray(content[kept.offset : kept.offset + kept.nbytes]), dtype=torch.uint8)
        piece = Piece(raw, kept.check, kept.whole)
        rebuilt(checkpoint, key, piece, expert_of(file.copy[key[0]], key[1]), group_size)
        assert not kept.whole
        assert kept.offset % 4096 == 0
        total += kept.nbytes
    assert total < 0.62 * sum(checkpoint.expert_source(*key).nbytes for key in file.pieces)
    assert len(load_file(file.path)["index"]) == len(file.pieces)


def test_an_expert_that_gains_nothing_is_kept_in_whole(checkpoint: Checkpoint) -> None:
    """Its 4-bit copy is of another expert: nearly all of its weights would be listed."""
    layer = checkpoint.spec.moe_layers[-1]
    expert, other = (checkpoint.read_expert(layer, i, dtype=BF16) for i in range(2))
    other = other._replace(**{name: getattr(other, name) * -1e3 for name in ("gate", "up", "down")})
    copy = quantise_expert(other, 32)
    piece = pack_expert(expert, copy, checkpoint.expert_source(layer, 0).shapes(), 32)
    assert piece.whole
    assert len(piece.content) == checkpoint.expert_source(layer, 0).assembled_nbytes(BF16)
    rebuilt(checkpoint, (layer, 0), piece, copy, 32)


def test_an_expert_whose_last_rows_gain_nothing_is_kept_in_whole(split: Checkpoint) -> None:
    """On the whole it is shorter, but written over itself its end would be lost."""
    layer = split.spec.moe_layers[0]
    expert = split.read_expert(layer, 0, dtype=BF16)
    shapes, good = split.expert_source(layer, 0).shapes(), quantise_expert(expert, 32)
    last = list(shapes)[2]
    scales = getattr(good, f"{last}_scales").clone()
    scales[-3:] *= -1e3
    copy = good._replace(**{f"{last}_scales": scales})
    assert not pack_expert(expert, good, shapes, 32).whole
    assert pack_expert(expert, copy, shapes, 32).whole


def test_what_is_not_the_piece_is_refused(split: Checkpoint) -> None:
    layer = split.spec.moe_layers[0]
    expert, source = split.read_expert(layer, 1, dtype=BF16), split.expert_source(layer, 1)
    copy = quantise_expert(expert, 64)
    piece = pack_expert(expert, copy, source.shapes(), 64)
    memory = torch.zeros(room(source), dtype=torch.uint8)

    def refused(piece: Piece, message: str, copy: Int4Tensors = copy) -> None:
        kept = memory[-len(piece.content) :]
        kept.copy_(piece.content)
        with pytest.raises(ValueError, match=message):
            unpack_expert(memory, piece._replace(content=kept), source, BF16, copy, 64)

    refused(piece._replace(content=piece.content[:-1]), "ends before its matrix is whole")
    refused(piece._replace(content=torch.cat((piece.content, piece.content[:2]))), "bytes instead of")
    changed = piece.content.clone()
    changed[7] ^= 1
    refused(piece._replace(content=changed), "another than was kept")
    scales = copy.up_scales.clone()
    scales[2] *= 2
    refused(piece, "another than was kept", copy._replace(up_scales=scales))


def test_a_file_that_is_there_is_used(split: Checkpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = made(split, tmp_path / "cache")
    written = first.path.stat().st_mtime_ns
    caplog.clear()
    again = made(split, tmp_path / "cache")
    assert (again.path, again.pieces) == (first.path, first.pieces)
    assert first.path.stat().st_mtime_ns == written
    assert not caplog.records
    assert first.path == residual_path(split, 32, tmp_path / "cache") != cache_file(split, 32, tmp_path / "cache")
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == sorted(
        path.name for path in (first.path, cache_file(split, 32, tmp_path / "cache"))
    )


def _missing(path: Path) -> None:
    rewritten(path, lambda t: t.pop("layers.0.experts.1"))


def _off_its_page(path: Path) -> None:
    rewritten(path, lambda t: None)


def _another_copy(path: Path) -> None:
    rewritten(path, lambda t: None, copy="0" * 32)


def _a_longer_piece(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5 * 2 * 3 * 8] ^= 0xFF  # the first number of the index: 5 experts in each of 2 layers, 3 numbers of each
    content[-5 * 2 * 3 * 8 + 2] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut, "truncated"),
        (_missing, "tensor layers.0.experts.1 is missing"),
        (_off_its_page, "its index says"),
        (_another_copy, "copy: '0000"),
        (an_older_form, "version: '0'"),
        (_a_longer_piece, "its index says"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_file_that_is_not_right_is_made_again(
    split: Checkpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None], message: str
) -> None:
    first = made(split, tmp_path / "cache")
    whole = first.path.read_bytes()
    spoil(first.path)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert made(split, tmp_path / "cache").pieces == first.pieces
    assert message in caplog.text
    assert first.path.read_bytes() == whole


def test_a_file_of_another_copy_of_the_same_model_is_made_again(split: Checkpoint, tmp_path: Path) -> None:
    """Two quantisations of one model can differ, and a residual fits only the one that it was made with."""
    first = made(split, tmp_path / "cache")
    layers = load_int4(split, 32, folder=tmp_path / "cache")
    layer = split.spec.moe_layers[1]
    layers[layer].up_scales[3, 2] *= 1.5
    again = load_residuals(split, layers, 32, folder=tmp_path / "cache")
    assert again.pieces[layer, 3] != first.pieces[layer, 3]
    assert again.pieces[layer, 2].check == first.pieces[layer, 2].check


def test_not_being_able_to_write_it_is_one_line(
    split: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = load_int4(split, 32, folder=tmp_path / "cache")
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("", (), {"free": 10}))
    with pytest.raises(StoreError, match=r"residual.safetensors: cannot keep the residuals .* 10 are free"):
        load_residuals(split, layers, 32, folder=tmp_path / "cache")
    assert not residual_path(split, 32, tmp_path / "cache").exists()


def test_only_of_experts_in_bfloat16(tmp_path: Path, split: Checkpoint) -> None:
    check_dtypes(split, BF16)
    check_dtypes(split, torch.float32)  # matrices stay as they are then, too
    make_folder(tmp_path / "wide", QWEN3, dtype=torch.float32)
    with pytest.raises(ConfigError, match=r"draft_residual: True \(only with experts in bfloat16.*: bfloat16, float32"):
        check_dtypes(open_checkpoint(tmp_path / "wide"), BF16)
