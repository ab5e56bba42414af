import json
from pathlib import Path

from smoe.bench.result import Figure, Result, print_figures


def _result() -> Result:
    result = Result(name="x", config={"seed": 0})
    result.samples["raw"] = [1.0, 2.0]
    result.add(Figure(figure="speed", value=2.5, unit="tokens/s", goal=">= 2", met=True, bound="memory"))
    result.add(Figure(figure="latency", value=None, unit="ms"))
    return result


def test_written_file_holds_what_a_reader_needs(tmp_path: Path) -> None:
    body = json.loads(_result().write(tmp_path / "new").read_text())
    assert body["hardware"]["threads"] >= 1
    assert body["versions"]["torch"]
    assert body["commit"]
    assert body["config"] == {"seed": 0}
    assert body["samples"] == {"raw": [1.0, 2.0]}
    assert body["summary"][0] == {
        "figure": "speed",
        "value": 2.5,
        "unit": "tokens/s",
        "goal": ">= 2",
        "met": True,
        "bound": "memory",
    }
    assert body["summary"][1]["value"] is None


def test_table_says_what_was_not_measured(capsys) -> None:  # type: ignore[no-untyped-def]
    print_figures(_result().summary, "t")
    text = capsys.readouterr().out
    assert "not measured" in text
    assert "yes" in text
