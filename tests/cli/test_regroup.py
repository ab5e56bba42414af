"""`smoe regroup` as a user runs it, in one process."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from smoe.core.placement_file import read_placement, read_report
from smoe.core.route_edit import select_sequences
from smoe.core.route_trace import RouteTrace, write_route_trace
from tests.clustering.routes import drawn

QUICK = ("--solver-option", "samples=8", "--solver-option", "rounds=2", "--solver-option", "kicks=0")
FAST = ("--in-process", "--solver", "eplb")


def write(path: Path, trace: RouteTrace) -> str:
    write_route_trace(path, trace)
    return str(path)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return write(tmp_path / "t.safetensors", drawn(400, layers=3, experts=8))


def test_a_placement_folder_that_a_person_can_judge(smoe: Callable, trace: str, tmp_path: Path) -> None:
    out = tmp_path / "p"
    result = smoe("regroup", "--trace", trace, "--devices", "2", "--out", str(out), "--in-process", *QUICK)
    assert result.code == 0, result.err
    for words in ("both and chain", "oracle", "expert load", "equal chunks", "calibration error", "speculative"):
        assert words in result.out
    assert sorted(path.name for path in out.iterdir()) == [
        "calibration.png",
        "convergence.png",
        "lar.png",
        "placement.json",
        "run.json",
        "tables.safetensors",
    ]
    assert not out.with_name("p.work").exists()
    placement = read_placement(out, fingerprint="f")
    assert placement.slots_of_device == (4, 4)
    lar = read_report(out)["heldout"]["mean_lar"]
    assert lar["both"] > lar["vanilla"] + 0.1
    assert result.err.startswith('config: {"trace": ')


def test_equal_arguments_make_equal_placements(smoe: Callable, trace: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        out = str(tmp_path / name)
        assert smoe("regroup", "--trace", trace, "--devices", "2", "--out", out, "--in-process", *QUICK).code == 0
    for name in ("placement.json", "tables.safetensors", "lar.png", "convergence.png", "calibration.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_finished_layers_are_not_solved_again(
    smoe: Callable, trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from smoe.clustering import layer_job

    whole, out = tmp_path / "whole", tmp_path / "p"
    arguments = ("regroup", "--trace", trace, "--devices", "2", *FAST)
    assert smoe(*arguments, "--out", str(whole)).code == 0
    solved: list[int] = []
    solve = layer_job.solve_layer

    def solve_two(layer: RouteTrace, rules: layer_job.LayerRules) -> layer_job.LayerResult:
        if len(solved) == 2:
            raise KeyboardInterrupt
        solved.append(layer.layers[0])
        return solve(layer, rules)

    monkeypatch.setattr(layer_job, "solve_layer", solve_two)
    assert smoe(*arguments, "--out", str(out)).code == 130
    assert not out.exists()
    refused = smoe(*arguments, "--seed", "5", "--out", str(out))
    assert refused.code == 2
    assert re.search(r"seed: 5 \(0, with which .*p\.work was begun; remove that folder", refused.err)
    solved.clear()
    again = smoe(*arguments, "--out", str(out))
    assert again.code == 0, again.err
    assert "2 of 3 layers are there already" in again.err
    assert solved == [2]
    assert (out / "placement.json").read_bytes() == (whole / "placement.json").read_bytes()


def test_a_trace_that_changed_does_not_go_on(
    smoe: Callable, trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("smoe.clustering.layer_job.solve_layer", stop)
    arguments = ("regroup", "--trace", trace, "--devices", "2", *FAST, "--out", str(tmp_path / "p"))
    assert smoe(*arguments).code == 130
    write(Path(trace), drawn(400, layers=3, experts=8, seed=9))
    assert re.search(r"^error: files: ", smoe(*arguments).err, flags=re.MULTILINE)


def test_a_file_gives_the_options_and_flags_win(smoe: Callable, trace: str, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"trace: {trace}\nslots_of_device: [5, 3]\nsolver: contiguous\nmax_load: 2\n")
    out = tmp_path / "p"
    arguments = ("--config", str(config), "--out", str(out), "--in-process", "--max-load", "none", "--json")
    result = smoe("regroup", *arguments)
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert (report["config"]["solver"], report["config"]["max_load"]) == ("contiguous", None)
    assert read_placement(out).slots_of_device == (5, 3)


def test_loads_alone_are_balanced(smoe: Callable, tmp_path: Path) -> None:
    table = tmp_path / "l.csv"
    rows = [f"{layer},{expert},{expert * layer}" for layer in (0, 4) for expert in range(8)]
    table.write_text("layer_id,expert_id,count\n" + "\n".join(rows) + "\n")
    out = tmp_path / "p"
    result = smoe("regroup", "--load", str(table), "--devices", "2", "--out", str(out), *FAST)
    assert result.code == 0, result.err
    assert "expert load, busiest device / mean: 1.000 over layers" in result.out
    placement = read_placement(out)
    assert (placement.layers, placement.tables) == ((0, 4), None)


def test_every_solver_side_by_side(smoe: Callable, trace: str, tmp_path: Path) -> None:
    out = tmp_path / "c"
    result = smoe("regroup", "--trace", trace, "--devices", "2", "--out", str(out), "--compare", "--in-process", *QUICK)
    assert result.code == 0, result.err
    for name in ("cross-entropy", "contiguous", "random", "eplb", "kmeans", "alternating", "inter-layer"):
        assert name in result.out
    assert sorted(path.name for path in out.iterdir()) == ["compare.json", "convergence.png", "front.png"]
    rows = json.loads((out / "compare.json").read_text())["rows"]
    assert rows[0]["solver"] == "cross-entropy"


def corrupt(path: Path, **changes: object) -> str:
    """Rewrites the arrays of a trace file, its header untouched."""
    from safetensors import safe_open

    arrays = load_file(path)
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    for name, change in changes.items():
        arrays[name] = change(arrays[name])  # type: ignore[operator]
    save_file(arrays, path, metadata=metadata)
    return str(path)


def put(position: tuple[int, ...], value: float) -> Callable[[np.ndarray], np.ndarray]:  # type: ignore[type-arg]
    def change(array: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        changed = array.copy()
        changed[position] = value
        return changed

    return change


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--devices", "3"), r"devices: 3 \(8 experts are divided by 2 or 4; for uneven groups give slots_of_device"),
        (("--slots-of-device", "4,5"), r"slots_of_device: \[4, 5\] \(8 experts in all, not 9\)"),
        (("--slots-of-device", "4,x"), r"slots_of_device: '4,x' \(integers between commas"),
        (("--devices", "2", "--theta", "1"), r"theta: 1\.0 \(above 0, below 1\)"),
        (("--devices", "2", "--theta", "0"), r"theta: 0\.0 \(above 0, below 1\)"),
        (("--devices", "2", "--solver", "magic"), r"solver: 'magic' \(one of cross-entropy, "),
        (("--devices", "2", "--solver-option", "samples"), r"solver_option: 'samples' \(NAME=VALUE"),
        (("--devices", "2", "--jobs", "0"), r"jobs: 0 \(integer >= 1\)"),
        (("--devices", "2", "--jobs", "2", "--in-process"), r"jobs: 2 \(not with --in-process"),
        (("--devices", "2", "--topology", "2x4-pcie-upi"), r"topology: '2x4-pcie-upi of 8 devices' \(2 devices\)"),
        (("--devices", "2", "--model", "builtin"), r"t\.safetensors: fingerprint: 'f' \(the model's is '"),
        (("--devices", "2", "--replicas", "5"), r"replicas: 5 \(0 to the 4 experts that a device lacks\)"),
        ((), r"devices: None \(a number of devices, or slots_of_device instead\)"),
    ],
)
def test_bad_arguments(smoe: Callable, trace: str, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    result = smoe("regroup", "--trace", trace, "--out", str(tmp_path / "p"), *arguments)
    assert result.code == 2
    assert re.search(rf"^error: .*{message}", result.err, flags=re.MULTILINE), result.err
    assert "Traceback" not in result.err
    assert not list(tmp_path.glob("p*"))


@pytest.mark.usefixtures("nothing_starts")
def test_bad_traces(smoe: Callable, trace: str, tmp_path: Path) -> None:
    plain = drawn(400, layers=3, experts=8)
    weights = np.full(plain.expert_ids.shape, 0.5, dtype=np.float16)
    weighted = write(tmp_path / "w.safetensors", replace(plain, expert_weights=weights))
    cases = {
        write(tmp_path / "empty.safetensors", select_sequences(plain, [])): r"empty: no token to learn from",
        write(tmp_path / "one.safetensors", select_sequences(plain, [0])): r"1 sequence \(at least 2",
        corrupt(Path(weighted), expert_weights=put((1, 5, 0), np.nan)): r"expert_weights\[1, 5, 0\]: nan \(finite\)",
        corrupt(Path(shutil.copy(trace, tmp_path / "range.safetensors")), expert_ids=put((2, 7, 1), 8)): (
            r"expert_ids\[2, 7, 1\]: 8 \(0 to 7\)"
        ),
        corrupt(Path(shutil.copy(trace, tmp_path / "k.safetensors")), expert_ids=lambda a: a[..., :1].copy()): (
            r"expert_ids: shape \[3, 400, 1\] \(expected \[3, 400, 2\]\)"
        ),
        str(tmp_path / "none"): r"none: no such file",
    }
    for path, message in cases.items():
        result = smoe("regroup", "--trace", path, "--devices", "2", "--out", str(tmp_path / "p"))
        assert result.code == 2
        assert re.search(rf"^error: .*{message}", result.err, flags=re.MULTILINE), result.err


@pytest.mark.usefixtures("nothing_starts")
def test_a_folder_that_exists_is_left_alone(smoe: Callable, trace: str, tmp_path: Path) -> None:
    out = tmp_path / "p"
    out.mkdir()
    result = smoe("regroup", "--trace", trace, "--devices", "2", "--out", str(out))
    assert result.code == 2
    assert re.search(r"out: .*p' \(a new folder: this one exists\)", result.err)
    assert not list(out.iterdir())
