"""`smoe bench slo` from the command line: refusals before anything starts, and one whole run."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

SLO = ("bench", "slo")
GOOD = (*SLO, "--goodput", "ttft:500", "tpot:50")

REFUSED = [
    ((*SLO,), r"rates: 'auto' \(needs --goodput, or rates to sweep"),
    ((*SLO, "ttft:500"), r"goodput: 'ttft:500' \(limits follow --goodput\)"),
    ((*GOOD, "ttlt:5"), r"goodput: 'ttlt:5' \(NAME:MILLISECONDS, NAME of ttft, tpot, e2el, tbt_p90"),
    ((*GOOD, "--percent", "0"), r"percent: '0' \(above 0, up to 100\)"),
    ((*GOOD, "--rates", "1,,2"), r"rates: '1,,2' \(values between commas\)"),
    ((*GOOD, "--rates", "1,fast"), r"rates: 'fast' \(number\)"),
    ((*GOOD, "--rates", "own"), r"rates: 'own' \(only with --arrival trace"),
    ((*GOOD, "--rates", "0"), r"rates: '0' \(a number above 0\)"),
    ((*GOOD, "--rates", "1", "--start-rate", "2"), r"start_rate: '2' \(has no effect without --rates auto\)"),
    ((*GOOD, "--max-concurrency", "4", "--tolerance", "1"), r"tolerance: '1' \(has no effect without --rates auto"),
    ((*GOOD, "--max-concurrency", "4", "--rates", "1"), r"rates: '1' \(not with --max-concurrency"),
    ((*GOOD, "--max-concurrency", "4", "--arrival", "poisson"), r"arrival: 'poisson' \(not with --max-concurrency"),
    ((*GOOD, "--max-concurrency", "0"), r"max_concurrency: '0' \(integer >= 1\)"),
    ((*GOOD, "--arrival", "often"), r"arrival: 'often' \(poisson, gamma:CV"),
    ((*GOOD, "--arrival", "trace"), r"arrival: 'trace' \(has no effect without --workload\)"),
    ((*GOOD, "--skip-bad-rows"), r"skip_bad_rows: True \(has no effect without --workload\)"),
    ((*GOOD, "--workload", "azure-conv", "--input-len", "5"), r"input_len: '5' \(not with --workload"),
    ((*GOOD, "--workload", "azure-conv", "--num-requests", "9999"), r"num_requests: 9999 \(1 to the 3000 rows"),
    ((*GOOD, "--workload", "no-such"), r"no-such: no such file \(nor one of the packaged request traces azure-code"),
    ((*GOOD, "--len-spread", "1"), r"len_spread: 1.0 \(0 up to, not including, 1\)"),
    ((*GOOD, "--num-requests", "0"), r"num_requests: '0' \(integer >= 1\)"),
    ((*GOOD, "--endpoint", "edits"), r"endpoint: 'edits' \(completions or chat\)"),
    ((*GOOD, "--api-key", "secret"), r"api_key: '...' \(has no effect without --base-url\)"),
    ((*GOOD, "--tokenizer", "builtin"), r"tokenizer: 'builtin' \(has no effect without --base-url\)"),
    ((*GOOD, "--base-url", "http://h", "--serve", "--in-process"), r"serve: '--in-process' \(not with --base-url"),
    ((*GOOD, "--prompts", "poems"), r"prompts: 'poems' \(one of mixed, prose"),
    ((*GOOD, "--request-timeout", "0"), r"request_timeout: '0' \(a number above 0\)"),
    ((*GOOD, "--base-url", "h:80"), r"base_url: 'h:80' \(http://HOST:PORT"),
    (("bench", "throughput", "--batch", "1,0"), r"batch: '0' \(integer >= 1\)"),
    (("bench", "throughput", "--in-process", "--input-len", "1020"), r"input_len: 1084 \(with output_len at most the"),
    (("bench", "throughput", "--in-process", "--placement", "p"), r"placement: "),
    (("bench", "compare", "none.json", "none.json"), r"result: 'none.json' \(a readable file"),
]


@pytest.fixture(autouse=True)
def no_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a server was started")

    if "live" not in request.node.name:
        monkeypatch.setattr("smoe.bench.slo.child.own_server", refuse)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_is_refused_in_one_line(smoe: Callable, arguments: tuple[str, ...], message: str) -> None:
    result = smoe(*arguments)
    assert result.code == 2
    lines = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert re.search(message, lines[0]), lines[0]


def test_compares_results(smoe: Callable, tmp_path: Path) -> None:
    for name, value in (("a", 2.0), ("b", 5.0)):
        figure = {"figure": "speed", "value": value, "unit": "tokens/s", "spread": [value - 1, value + 1]}
        (tmp_path / f"{name}.json").write_text(json.dumps({"summary": [figure], "config": {"memory": name}}))
    files = (str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    shown = smoe("bench", "compare", *files)
    assert shown.code == 0
    assert "2.5x" in shown.out
    assert "config.memory: 'a' against 'b'" in shown.out
    [row] = json.loads(smoe("bench", "compare", *files, "--json").out)["rows"]
    assert (row["ratio"], row["ratio_spread"]) == (2.5, [4 / 3, 6.0])


def test_a_live_sweep_of_our_own_server(smoe: Callable, tmp_path: Path) -> None:
    lengths = ("--input-len", "12", "--output-len", "5", "--len-spread", "0.5", "--num-requests", "8")
    made = ("--rates", "20,40", "--repeats", "1", "--warmup", "1", "--seed", "3", "--arrival", "gamma:2")
    out = ("--out", str(tmp_path), "--serve", "--in-process --expert-memory 50%")
    result = smoe(*SLO, "--goodput", "ttft:60000", "e2el:60000", *made, *lengths, *out)
    assert result.code == 0, result.err
    assert "8 requests of made-up lengths, arrivals gamma:2, seed 3" in result.err
    body = json.loads((tmp_path / "slo.json").read_text())
    assert body["config"]["server"] == "smoe serve --model builtin --in-process --expert-memory 50%"
    assert body["summary"][0]["value"] == 40
    assert [(p["rate"], p["completed"], p["failed"]) for p in body["samples"]["points"]] == [(20, 8, 0), (40, 8, 0)]
    lines = gzip.decompress((tmp_path / "slo.requests.jsonl.gz").read_bytes()).splitlines()
    requests = [json.loads(line) for line in lines]
    assert len(requests) == 16
    assert all(6 <= r["prompt_tokens"] <= 18 and 2 <= r["output_tokens"] <= 7 for r in requests)
    assert all(r["output_tokens"] >= len(r["chunk_s"]) >= 1 for r in requests)
    told = [json.loads(x) for x in gzip.decompress((tmp_path / "slo.timeline.jsonl.gz").read_bytes()).splitlines()]
    assert {"running", "waiting", "expert_hits", "expert_uses"} <= told[0].keys()
    assert (tmp_path / "slo-timeline.png").exists()
