"""Placement folders: what is written is read again, and nothing else is taken for one."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from smoe.core.errors import ConfigError, PlacementError
from smoe.core.placement_build import contiguous, with_replicas
from smoe.core.placement_file import check_placement_folder, read_placement, read_report, write_placement
from tests.core.placements import DEVICES, LAYERS, placement, same, tables

REPORT = {"objective": 0.25, "heldout": {"lar": [0.5, 0.75, 1.0]}, "solver": "cross-entropy"}


def copies() -> list[list[list[int]]]:
    """For every layer and device an expert that it lacks."""
    held = placement().on_device
    return [[[int(np.flatnonzero(~held[row, :, g])[0])] for g in range(DEVICES)] for row in range(len(LAYERS))]


@pytest.mark.parametrize(
    "made",
    [placement(), placement(tables=None), with_replicas(placement(), copies())],
    ids=["tables", "plain", "copies"],
)
def test_round_trip(made: Any, tmp_path: Path) -> None:
    write_placement(tmp_path / "out", made, report=REPORT)
    assert same(read_placement(tmp_path / "out", fingerprint="abc"), made)
    assert read_report(tmp_path / "out") == REPORT
    names = ["placement.json", "tables.safetensors"] if made.tables else ["placement.json"]
    assert sorted(os.listdir(tmp_path / "out")) == names
    assert os.listdir(tmp_path) == ["out"], "nothing is left beside it"


def test_equal_placements_are_equal_files_in_any_process(tmp_path: Path) -> None:
    code = (
        "import sys; from smoe.core.placement_file import write_placement; from tests.core.placements import placement;"
        "write_placement(sys.argv[1], placement(), report={'b': 1, 'a': [0.1]})"
    )
    for name, seed in (("a", "1"), ("b", "2")):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], check=True, env=environment)
    write_placement(tmp_path / "c", placement(), report={"a": [0.1], "b": 1})
    write_placement(tmp_path / "d", placement(1), report={"a": [0.1], "b": 1})
    contents = [[(tmp_path / n / f).read_bytes() for f in ("placement.json", "tables.safetensors")] for n in "abcd"]
    assert contents[0] == contents[1] == contents[2]
    assert contents[0][0] != contents[3][0]


def test_the_maps_have_the_names_of_eplb(tmp_path: Path) -> None:
    write_placement(tmp_path / "out", with_replicas(placement(), copies()))
    fields = json.loads((tmp_path / "out/placement.json").read_text())
    physical, logical = fields["physical_to_logical"], fields["logical_to_physical"]
    for row in range(len(LAYERS)):
        for expert, slots in enumerate(logical[row]):
            held = [slot for slot in slots if slot >= 0]
            assert len(held) == fields["logical_count"][row][expert]
            assert [physical[row][slot] for slot in held] == [expert] * len(held)
    assert len(physical[0]) == sum(fields["slots_of_device"])


Edit = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda f: f.update(schema="smoe.placement/2"), "schema: 'smoe.placement/2' (expected 'smoe.placement/1')"),
        (lambda f: f.pop("schema"), "schema: None (expected"),
        (lambda f: f.pop("layers"), "fields missing: ['layers'], unknown: []"),
        (lambda f: f.update(more=1), "fields missing: [], unknown: ['more']"),
        (lambda f: f.update(fingerprint=7), "fingerprint: 7 (text)"),
        (lambda f: f.update(report=[]), "report: [] (an object)"),
        (lambda f: f.update(num_experts=True), "num_experts: True (an integer)"),
        (lambda f: f.update(num_experts=7.0), "num_experts: 7.0 (an integer)"),
        (lambda f: f.update(num_experts=2**70), "num_experts: 1180591620717411303424 (an integer)"),
        (lambda f: f.update(layers="abc"), "layers: 'abc' (integers in 1 even axes)"),
        (lambda f: f["physical_to_logical"][1].pop(), "physical_to_logical: [["),
        (lambda f: f["physical_to_logical"][1].__setitem__(3, 2**40), "physical_to_logical: [["),
        (lambda f: f["physical_to_logical"][1].__setitem__(3, 9), "layer 2: slot2expert[3]: 9 (an expert, 0 to 6)"),
        (lambda f: f["expert_device"][2].reverse(), "expert_device: not what physical_to_logical"),
        (lambda f: f["logical_count"][0].__setitem__(0, 2), "logical_count: not what"),
        (lambda f: f["logical_to_physical"][0].reverse(), "logical_to_physical: not what"),
        (lambda f: f.update(slots_of_device=[2, 3, 2]), "expert_device: not what"),
        (lambda f: f.update(tables=3), "tables: 3 (null, or bytes, sha256, vocab_size)"),
        (lambda f: f["tables"].update(vocab_size=12), "token_device: shape [3, 11] (tables of 12 token ids)"),
        (lambda f: f["tables"].update(bytes=12), "(placement.json says 12)"),
    ],
)
def test_a_placement_json_that_is_wrong(edit: Edit, message: str, tmp_path: Path) -> None:
    write_placement(tmp_path / "out", placement())
    path = tmp_path / "out/placement.json"
    fields = json.loads(path.read_text())
    edit(fields)
    path.write_text(json.dumps(fields))
    with pytest.raises(PlacementError, match=re.escape(message)) as error:
        read_placement(tmp_path / "out")
    assert str(tmp_path / "out") in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["placement.json", "tables.safetensors"])
def test_a_truncated_file_is_no_placement(name: str, tmp_path: Path) -> None:
    write_placement(tmp_path / "out", placement())
    path = tmp_path / "out" / name
    whole = path.read_bytes()
    for length in {0, 1, 9, len(whole) // 2, len(whole) - 3}:
        path.write_bytes(whole[:length])
        with pytest.raises(PlacementError, match=re.escape(name)):
            read_placement(tmp_path / "out")


def test_tables_of_another_placement_are_noticed(tmp_path: Path) -> None:
    write_placement(tmp_path / "a", placement(0))
    write_placement(tmp_path / "b", placement(1))
    (tmp_path / "a/tables.safetensors").write_bytes((tmp_path / "b/tables.safetensors").read_bytes())
    with pytest.raises(PlacementError, match=r"tables\.safetensors: sha256: "):
        read_placement(tmp_path / "a")
    (tmp_path / "a/tables.safetensors").unlink()
    with pytest.raises(PlacementError, match=r"tables\.safetensors: No such file"):
        read_placement(tmp_path / "a")


def test_tables_with_other_tensors(tmp_path: Path) -> None:
    write_placement(tmp_path / "out", placement())
    path = tmp_path / "out/tables.safetensors"
    arrays = load(path.read_bytes())
    for changed, message in (
        (arrays | {"more": arrays["token_device"]}, "unknown: ['more']"),
        ({k: v for k, v in arrays.items() if k != "chain_device"}, "missing: ['chain_device']"),
        (arrays | {"token_device": arrays["token_device"].astype(np.int32)}, "token_device: dtype int32"),
        (arrays | {"token_device": arrays["token_device"][0]}, "token_device: shape [11]"),
    ):
        content = save(changed)
        path.write_bytes(content)
        fields = json.loads((tmp_path / "out/placement.json").read_text())
        fields["tables"] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        (tmp_path / "out/placement.json").write_text(json.dumps(fields))
        with pytest.raises(PlacementError, match=re.escape(message)):
            read_placement(tmp_path / "out")


def test_folders_that_are_no_placement(tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match=r"nothing: no placement: it has no placement\.json"):
        read_placement(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(PlacementError, match=r"file/placement\.json: Not a directory"):
        read_placement(tmp_path / "file")
    write_placement(tmp_path / "out", placement())
    with pytest.raises(PlacementError, match=r"fingerprint: 'abc' \(the model's is 'other'"):
        read_placement(tmp_path / "out", fingerprint="other")
    for text in ("[]", "[" * 100_000, '{"a": 1, '):
        (tmp_path / "out/placement.json").write_text(text)
        with pytest.raises(PlacementError, match=r"placement\.json: (broken JSON|schema)"):
            read_placement(tmp_path / "out")


@pytest.mark.parametrize(
    ("made", "report", "message"),
    [
        (placement(num_experts=8), {}, "7 slots (at least one for each of 8 experts)"),
        (placement(), {"lar": float("nan")}, "report: Out of range float values"),
        (placement(), {"lar": np.float32(1)}, "report: Object of type float32"),
    ],
)
def test_what_cannot_be_written_leaves_nothing(made: Any, report: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match=re.escape(message)):
        write_placement(tmp_path / "out", made, report=report)
    assert os.listdir(tmp_path) == []


def test_an_existing_folder_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "out"
    write_placement(target, placement(0))
    for refuse in (lambda: check_placement_folder(target), lambda: write_placement(target, placement(1))):
        with pytest.raises(ConfigError, match=r"out: '.*out' \(a new folder: this one exists\)"):
            refuse()
    assert same(read_placement(target), placement(0))
    check_placement_folder(target, replace=True)
    write_placement(target, placement(1, tables=None), replace=True)
    assert same(read_placement(target), placement(1, tables=None))
    assert os.listdir(target) == ["placement.json"], "nothing of the old one is left"
    assert os.listdir(tmp_path) == ["out"]


def test_only_a_placement_is_ever_replaced(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/precious").write_text("x")
    (tmp_path / "file").write_text("x")
    write_placement(tmp_path / "real", placement())
    (tmp_path / "link").symlink_to("real")
    for name in ("home", "file", "link"):
        with pytest.raises(ConfigError, match=r"or one with a placement\.json to replace"):
            write_placement(tmp_path / name, placement(), replace=True)
    assert (tmp_path / "home/precious").read_text() == "x"
    assert (tmp_path / "link").is_symlink()
    with pytest.raises(ConfigError, match="a folder whose parent exists"):
        check_placement_folder(tmp_path / "no/where")


def test_other_files_go_in_too(tmp_path: Path) -> None:
    write_placement(tmp_path / "out", placement(), files={"plots/lar.png": b"png", "notes.txt": b"text"})
    assert (tmp_path / "out/plots/lar.png").read_bytes() == b"png"
    assert same(read_placement(tmp_path / "out"), placement())
    with pytest.raises(PlacementError, match=r"files: placement\.json \(another name"):
        write_placement(tmp_path / "two", placement(), files={"placement.json": b""})


STOP_AT = """
import os, sys, itertools
from pathlib import Path
from smoe.core.placement_file import write_placement
from tests.core.placements import placement
count, stop = itertools.count(), int(sys.argv[2])
real_open, real_rename = open, Path.rename
def step():
    if next(count) == stop:
        os._exit(9)
def dying_open(*args, **kwargs):
    step()
    return real_open(*args, **kwargs)
def dying_rename(self, target):
    step()
    return real_rename(self, target)
import smoe.core.folder as folder
folder.open = dying_open
Path.rename = dying_rename
write_placement(sys.argv[1], placement(1), replace=True)
step()
"""


@pytest.mark.parametrize("existing", [False, True])
def test_a_process_that_dies_while_writing_leaves_the_old_folder_or_none(existing: bool, tmp_path: Path) -> None:
    """It dies before each of its steps in turn, up to the last."""
    steps = ["tables", "json", *(["away"] if existing else []), "name", "done"]
    for step, what in enumerate(steps):
        target = tmp_path / what / "out"
        target.parent.mkdir()
        if existing:
            write_placement(target, placement(0))
        died = subprocess.run([sys.executable, "-c", STOP_AT, str(target), str(step)], check=False)
        assert died.returncode == 9, "every step was tried"
        if what == "done":
            assert same(read_placement(target), placement(1))
        elif existing and what != "name":
            assert same(read_placement(target), placement(0))
        else:
            assert not target.exists()
            with pytest.raises(PlacementError, match="no placement"):
                read_placement(target)
        left = [path for path in target.parent.iterdir() if path != target]
        assert all(path.name.startswith(".out.") for path in left), left
        for path in left:
            if (path / "placement.json").exists() and what != "json":
                read_placement(path)
            else:
                assert not (path / "placement.json").exists(), "written last"


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_placement(tmp_path / "out", placement())
    assert os.listdir(tmp_path) == []


def test_the_slower_of_two_writers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both found no folder; the other one made it meanwhile."""
    target = tmp_path / "out"
    write_placement(target, placement(0))
    monkeypatch.setattr("smoe.core.folder.check_new_folder", lambda *_, **__: None)
    with pytest.raises(ConfigError, match="a new folder: this one exists"):
        write_placement(target, placement(1))
    assert same(read_placement(target), placement(0))
    assert os.listdir(tmp_path) == ["out"]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), data=st.data())
def test_any_placement_comes_back(seed: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Any number of devices, layers, copies and token ids, down to one device, one layer and no id at all."""
    rng = np.random.default_rng(seed)
    devices, layers, experts = (data.draw(st.integers(1, high)) for high in (4, 3, 9))
    devices, vocab = min(devices, experts), data.draw(st.integers(0, 5))
    made = contiguous(fingerprint="f", num_experts=experts, layers=range(layers), num_devices=devices)
    extra = [data.draw(st.integers(0, experts - count)) for count in made.slots_of_device]
    lacking = [[np.flatnonzero(~made.on_device[row, :, g]) for g in range(devices)] for row in range(layers)]
    made = with_replicas(
        made, [[rng.permutation(own)[:n] for own, n in zip(row, extra, strict=True)] for row in lacking]
    )
    if devices > 1:
        made = replace(made, tables=tables(seed, layers=layers, devices=devices, vocab=vocab))
    folder = tmp_path_factory.mktemp("any") / "out"
    write_placement(folder, made)
    assert same(read_placement(folder), made)
