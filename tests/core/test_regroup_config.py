from pathlib import Path
from typing import Any

import pytest

from smoe.core.errors import ConfigError
from smoe.core.regroup_config import RegroupConfig, read_regroup_fields


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, r"trace: None \(a trace, or a table"),
        ({"trace": "t", "load": "l", "devices": 2}, r"trace: 't'"),
        ({"trace": "t"}, r"devices: None \(a number of devices, or slots_of_device"),
        ({"trace": "t", "devices": 2, "slots_of_device": (1, 2)}, r"devices: 2"),
        ({"trace": "t", "devices": 0}, r"devices: 0 \(1 or more\)"),
        ({"trace": "t", "slots_of_device": (3, 0)}, r"slots_of_device: \[3, 0\] \(1 or more each\)"),
        ({"trace": "t", "devices": 2, "theta": 0.0}, r"theta: 0\.0 \(above 0, below 1\)"),
        ({"trace": "t", "devices": 2, "theta": 1.0}, r"theta: 1\.0 \(above 0, below 1\)"),
        ({"trace": "t", "devices": 2, "theta": float("nan")}, r"theta: nan \(above 0, below 1\)"),
        ({"trace": "t", "devices": 2, "max_load": 0.9}, r"max_load: 0\.9 \(1 or more, or none\)"),
        ({"trace": "t", "devices": 2, "max_load": float("inf")}, r"max_load: inf"),
        ({"trace": "t", "devices": 2, "heldout": 1.0}, r"heldout: 1\.0 \(above 0, below 1\)"),
        ({"trace": "t", "devices": 2, "seed": -1}, r"seed: -1 \(0 or more\)"),
        ({"trace": "t", "devices": 2, "load_name": "x"}, r"load_name: 'x' \(has no effect without load\)"),
        ({"load": "l", "devices": 2, "topology": "x"}, r"topology: 'x' \(has no effect on a table of loads"),
        ({"trace": "t", "devices": 2, "model": "m", "vocab_size": 5}, r"vocab_size: 5 \(has no effect with model"),
    ],
)
def test_bad_fields(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RegroupConfig(**fields)


def test_devices_that_do_not_divide_the_experts_name_those_that_do() -> None:
    assert RegroupConfig(trace="t", devices=8).slots(64) == (8,) * 8
    with pytest.raises(ConfigError, match=r"devices: 7 \(60 experts are divided by 6 or 10; for uneven groups"):
        RegroupConfig(trace="t", devices=7).slots(60)
    with pytest.raises(ConfigError, match=r"devices: 100 \(60 experts are divided by 60; "):
        RegroupConfig(trace="t", devices=100).slots(60)
    assert RegroupConfig(trace="t", slots_of_device=(30, 20, 10)).slots(60) == (30, 20, 10)
    with pytest.raises(ConfigError, match=r"slots_of_device: \[30, 20\] \(60 experts in all, not 50\)"):
        RegroupConfig(trace="t", slots_of_device=(30, 20)).slots(60)


def test_a_file_sets_fields(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("trace: t\nslots_of_device: [3, 5]\nmax_load: null\ntheta: 0.25\nsolver_options: {samples: 64}\n")
    config = RegroupConfig(**read_regroup_fields(path))
    assert (config.slots_of_device, config.max_load, config.theta) == ((3, 5), None, 0.25)
    assert config.as_json()["solver_options"] == {"samples": 64}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devises: 3", r"c\.yaml: devises: 3 \(no such field; one of trace, load"),
        ("devices: four", r"c\.yaml: devices: 'four' \(an integer\)"),
        ("devices: true", r"c\.yaml: devices: True \(an integer\)"),
        ("theta: a lot", r"c\.yaml: theta: 'a lot' \(a number\)"),
        ("slots_of_device: [1, x]", r"c\.yaml: slots_of_device: \[1, 'x'\] \(a list of integers\)"),
        ("- a", r"c\.yaml: \['a'\] \(a mapping of"),
        ("theta: 1\ntheta: 2", r"c\.yaml: line 2: 'theta'"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_regroup_fields(path)
