import json
from pathlib import Path

import pytest

from smoe.bench.compare import compare
from smoe.core.errors import ConfigError


def write(path: Path, *figures: tuple[str, float | None, tuple[float, float] | None], **more: object) -> Path:
    summary = [
        {"figure": name, "value": value, "unit": "ms", **({"spread": spread} if spread else {})}
        for name, value, spread in figures
    ]
    path.write_text(json.dumps({"summary": summary, **more}))
    return path


def test_ratio_and_its_spread(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", ("ttft", 10.0, (8.0, 12.0)), ("tpot", 4.0, None), ("zero", 0.0, None))
    b = write(tmp_path / "b.json", ("tpot", 2.0, None), ("ttft", 30.0, (24.0, 36.0)), ("zero", 1.0, None))
    ttft, tpot, zero = compare(a, b).rows
    assert (ttft.figure, ttft.ratio, ttft.ratio_spread) == ("ttft", 3.0, (2.0, 4.5))
    assert (tpot.figure, tpot.ratio, tpot.ratio_spread) == ("tpot", 0.5, None)
    assert zero.ratio is None


def test_figures_of_one_alone_and_settings_that_differ(tmp_path: Path) -> None:
    same = {"hardware": {"cpu": "x"}, "versions": {"torch": "2"}}
    a = write(tmp_path / "a.json", ("x", 1.0, None), ("old", 1.0, None), commit="1", config={"seed": 0, "p": 1}, **same)
    b = write(tmp_path / "b.json", ("x", 1.0, None), ("new", 1.0, None), commit="1", config={"seed": 1}, **same)
    found = compare(a, b)
    assert (found.only_before, found.only_after) == (("old",), ("new",))
    assert found.settings == (("config.p", 1, None), ("config.seed", 0, 1))
    c = write(tmp_path / "c.json", ("x", None, None), ("old", 2.0, None), commit="2")
    assert ("commit", "1", "2") in compare(a, c).settings
    assert [row.figure for row in compare(a, c).rows] == ["old"]  # what was not measured is not compared


def test_flat_files_as_vllm_writes_them(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        '{"backend": "vllm", "mean_ttft_ms": 10.5, "completed": 3, "ok": true, "raw": [1]}'
    )
    (tmp_path / "b.json").write_text('{"mean_ttft_ms": 21.0, "completed": 3}')
    rows = compare(tmp_path / "a.json", tmp_path / "b.json").rows
    assert [(row.figure, row.ratio) for row in rows] == [("mean_ttft_ms", 2.0), ("completed", 1.0)]


def test_files_that_are_no_results(tmp_path: Path) -> None:
    good = write(tmp_path / "good.json", ("x", 1.0, None))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    other = write(tmp_path / "other.json", ("y", 1.0, None))
    for path, reason in (
        (tmp_path / "none.json", "a readable file: No such file"),
        (tmp_path / "broken.json", "JSON: "),
        (tmp_path / "list.json", "a JSON object"),
        (other, "a figure in common"),
    ):
        with pytest.raises(ConfigError, match=reason):
            compare(good, path)
