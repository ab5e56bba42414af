"""`smoe placement`: what it says, and what it refuses."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smoe.core.placement_build import contiguous, from_expert_device, with_replicas
from smoe.core.placement_file import write_placement
from smoe.models.loading import open_checkpoint
from tests.core.placements import placement


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    report: dict[str, Any] = {
        "objective": 0.25,
        "heldout": {"lar": 0.625, "by_layer": [0.5] * 20, "loads": [1.25, 2, 1.5]},
    }
    report |= {"nothing": None, "parts": [{"x": 1}], "flat": {"deeper": {"name": "word", "whole": True}}}
    write_placement(tmp_path / "made", placement(), report=report)
    return tmp_path / "made"


@pytest.fixture
def even(tmp_path: Path) -> Path:
    base = contiguous(fingerprint="abc", num_experts=6, layers=(1, 4), num_devices=3)
    write_placement(tmp_path / "even", with_replicas(base, [[[5], [0], [0]], [[2], [1], [1]]]))
    return tmp_path / "even"


def test_show(smoe: Callable, folder: Path) -> None:
    result = smoe("placement", "show", str(folder))
    assert result.code == 0, result.err
    for part in ("3 2 2", "abc", "11 token ids", "mean confidence", "objective 0.25"):
        assert part in result.out
    words = " ".join(result.out.replace("│", " ").split())  # as before the table wrapped them
    assert "heldout by_layer 0.5, lar 0.625, loads 1.25 to 2" in words
    assert "flat.deeper name word, whole True" in words
    assert "nothing" not in result.out
    found = json.loads(smoe("placement", "show", str(folder), "--json").out)
    assert (found["devices"], found["num_experts"], found["copies"]) == (3, 7, 0)
    assert [sum(layer["token_share"]) for layer in found["layers"]] == pytest.approx([1, 1, 1])
    assert found["report"]["heldout"]["lar"] == 0.625


def test_show_copies(smoe: Callable, even: Path) -> None:
    result = smoe("placement", "show", str(even))
    assert "3 each" in result.out
    assert "none: experts only" in result.out
    found = json.loads(smoe("placement", "show", str(even), "--json").out)
    assert [(layer["experts_with_copies"], layer["most_copies"]) for layer in found["layers"]] == [(2, 3), (2, 3)]


def test_invert(smoe: Callable, even: Path) -> None:
    result = smoe("placement", "invert", str(even), "--layer", "4")
    assert "layer 4" in result.out
    assert "layer 1" not in result.out
    assert "1 (0)  5 (1)  8 (2)" in result.out
    found = json.loads(smoe("placement", "invert", str(even), "--json").out)
    assert [layer["layer"] for layer in found["layers"]] == [1, 4]
    assert found["layers"][0]["device_experts"] == [[0, 1, 5], [2, 3, 0], [4, 5, 0]]
    assert found["layers"][0]["expert_slots"][0] == [0, 5, 8]


def test_diff(smoe: Callable, folder: Path, tmp_path: Path) -> None:
    before = placement()
    groups = before.expert2device
    groups[1, [0, np.flatnonzero(groups[1] != groups[1, 0])[0]]] = groups[
        1, [np.flatnonzero(groups[1] != groups[1, 0])[0], 0]
    ]
    after = from_expert_device(groups, before.slots_of_device, fingerprint="abc", layers=before.layers)
    write_placement(tmp_path / "after", after)
    result = smoe("placement", "diff", str(folder), str(tmp_path / "after"), "--expert-bytes", "2MB")
    assert "2 of 21 experts on the devices (9.5%) are new, 4,000,000 bytes" in result.out
    found = json.loads(smoe("placement", "diff", str(folder), str(tmp_path / "after"), "--json").out)
    assert (found["fetched"], found["bytes_moved"]) == (2, None)
    assert [layer["fetched"] for layer in found["layers"]] == [0, 2, 0]


def test_export(smoe: Callable, even: Path, tmp_path: Path) -> None:
    result = smoe("placement", "export", str(even), "--format", "tensorrt-llm", "--out", str(tmp_path / "b.yaml"))
    assert (result.code, result.out) == (0, f"{tmp_path / 'b.yaml'}: 2 layers, 9 slots a layer\n")
    assert "num_slots: 9" in (tmp_path / "b.yaml").read_text()
    assert smoe("placement", "export", str(even), "--format", "eplb", "--out", str(tmp_path / "b.npz")).code == 0


def test_validate(smoe: Callable, folder: Path, tiny: Path, tmp_path: Path) -> None:
    assert smoe("placement", "validate", str(folder)).out == f"{folder}: whole and valid\n"
    checkpoint = open_checkpoint(tiny)
    spec = checkpoint.spec
    facts = {"num_experts": spec.moe(spec.moe_layers[0]).router.num_experts, "layers": spec.moe_layers}
    own = contiguous(fingerprint=checkpoint.fingerprint, num_devices=2, **facts)
    write_placement(tmp_path / "own", own)
    result = smoe("placement", "validate", str(tmp_path / "own"), "--model", str(tiny))
    assert result.out == f"{tmp_path / 'own'}: whole and valid, of the model {tiny}\n"
    write_placement(tmp_path / "other", replace(own, fingerprint="other"))
    result = smoe("placement", "validate", str(tmp_path / "other"), "--model", str(tiny))
    assert result.code == 2
    assert (
        f"error: {tmp_path / 'other'}: fingerprint: 'other' (the model's is '{checkpoint.fingerprint}')" in result.err
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "{none}"), "none: no placement: it has no placement.json"),
        (("validate", "{none}"), "no placement"),
        (("invert", "{made}", "--layer", "3"), "layer: 3 (one of 1, 2, 5)"),
        (("invert", "{made}", "--layer", "x"), "layer: 'x' (integer)"),
        (("diff", "{made}", "{even}"), "num_experts: 6 (the other placement has 7)"),
        (("diff", "{made}", "{made}", "--expert-bytes", "0"), "expert_bytes: '0' (above zero)"),
        (("diff", "{made}", "{made}", "--expert-bytes", "much"), "expert_bytes: 'much' (bytes, as 12MB)"),
        (("export", "{made}", "--format", "eplb", "--out", "{none}.npz"), "slots_of_device: [3, 2, 2] (EPLB deals"),
        (("export", "{even}", "--format", "eplb", "--out", "{none}/x.npz"), "a file that can be written: No such file"),
        (("export", "{even}", "--format", "eplb", "--out", "{none}/x.safetensors"), "a file that can be written"),
        (("export", "{even}", "--format", "x", "--out", "{none}.npz"), "format: 'x' (one of eplb, tensorrt-llm)"),
        (("validate", "{made}", "--model", "{none}"), "no such model folder"),
    ],
)
def test_one_line_for_what_is_wrong(
    smoe: Callable, folder: Path, even: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    paths = {"none": tmp_path / "none", "made": folder, "even": even}
    result = smoe("placement", *(argument.format(**paths) for argument in arguments))
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert message in result.err
    assert result.err.count("\n") == 1
