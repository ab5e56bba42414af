import gzip
import json
from pathlib import Path

import pytest

from smoe.core.errors import TraceError
from smoe.workload.request_file import open_requests
from smoe.workload.request_trace import Arrival, packaged_requests

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE = HEADER + "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\n"
MOONCAKE = [
    {"timestamp": 27000, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]},
    {"timestamp": 27500, "input_length": 512, "output_length": 1, "hash_ids": [0]},
    {"timestamp": 27750.0, "input_length": 3, "output_length": 2},
]


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def jsonl(rows: list[object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_azure(tmp_path: Path) -> None:
    trace = open_requests(write(tmp_path, "a.csv", AZURE))
    assert [(row.prompt_tokens, row.output_tokens) for row in trace.rows] == [(374, 44), (396, 109)]
    assert [row.at_s for row in trace.rows] == pytest.approx([0, 4.314579], abs=1e-5)
    assert trace.rate == pytest.approx(1 / 4.314579, rel=1e-4)


def test_mooncake_plain_and_compressed(tmp_path: Path) -> None:
    trace = open_requests(write(tmp_path, "m.jsonl", jsonl(MOONCAKE)))
    assert trace.rows == (
        Arrival(at_s=0.0, prompt_tokens=600, output_tokens=5, blocks=(0, 7)),
        Arrival(at_s=0.5, prompt_tokens=512, output_tokens=1, blocks=(0,)),
        Arrival(at_s=0.75, prompt_tokens=3, output_tokens=2),
    )
    (tmp_path / "m.jsonl.gz").write_bytes(gzip.compress(jsonl(MOONCAKE).encode()))
    assert open_requests(str(tmp_path / "m.jsonl.gz")).rows == trace.rows


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2023-11-16 18:15:51,374", "2 columns"),
        ("yesterday,374,44", "TIMESTAMP 'yesterday'"),
        ("2023-11-16 18:15:51,374.5,44", "ContextTokens '374.5'"),
        ("2023-11-16 18:15:51,374,-4", "GeneratedTokens '-4'"),
        ("2023-11-16 18:15:51,0,44", "ContextTokens 0"),
        ("2023-11-16 18:15:40,374,44", "earlier than the row before it"),
    ],
)
def test_malformed_azure_rows(tmp_path: Path, line: str, reason: str) -> None:
    path = write(tmp_path, "a.csv", AZURE + line + "\n2023-11-16 18:16:00,1,1\n")
    with pytest.raises(TraceError, match=f"a.csv: line 4: {reason}"):
        open_requests(path)
    trace = open_requests(path, skip_bad_rows=True)
    assert (len(trace.rows), trace.skipped) == (3, 1)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ({"timestamp": 28000, "input_length": 3}, "no output_length"),
        ({"timestamp": "soon", "input_length": 3, "output_length": 2}, "timestamp 'soon'"),
        ({"timestamp": 28000, "input_length": True, "output_length": 2}, "input_length True"),
        ({"timestamp": 28000, "input_length": 3, "output_length": 0}, "output_length 0"),
        (
            {"timestamp": 28000, "input_length": 513, "output_length": 1, "hash_ids": [1]},
            "1 hash_ids; 513 tokens have 2",
        ),
        ({"timestamp": 28000, "input_length": 5, "output_length": 1, "hash_ids": [-1]}, "hash_ids"),
        ({"timestamp": 1, "input_length": 5, "output_length": 1}, "earlier than the row before it"),
    ],
)
def test_malformed_mooncake_rows(tmp_path: Path, row: object, reason: str) -> None:
    text = row if isinstance(row, str) else json.dumps(row)
    path = write(tmp_path, "m.jsonl", jsonl(MOONCAKE) + text + "\n")
    with pytest.raises(TraceError, match=f"m.jsonl: line 4: {reason}"):
        open_requests(path)
    assert open_requests(path, skip_bad_rows=True).skipped == 1


def test_files_that_are_no_request_trace(tmp_path: Path) -> None:
    for path, reason in (
        (str(tmp_path / "none.csv"), "no such file .*azure-code, azure-conv, mooncake-conversation"),
        (write(tmp_path, "a.txt", "x"), "ends in .csv"),
        (write(tmp_path, "b.csv", "a,b\n1,2\n"), "is not the header"),
        (write(tmp_path, "c.csv", HEADER), "no requests"),
        (write(tmp_path, "d.jsonl.gz", "no gzip"), "d.jsonl.gz"),
    ):
        with pytest.raises(TraceError, match=reason) as caught:
            open_requests(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", packaged_requests())
def test_packaged_samples_read_whole(name: str) -> None:
    trace = open_requests(name)
    assert trace.name == name
    assert len(trace.rows) >= 1000
    assert trace.rows[0].at_s == 0
    assert 0.5 < (trace.rate or 0) < 20
    assert bool(trace.rows[0].blocks) == name.startswith("mooncake")


def test_four_samples_are_packaged() -> None:
    assert packaged_requests() == ["azure-code", "azure-conv", "mooncake-conversation", "mooncake-synthetic"]
