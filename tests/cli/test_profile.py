"""`smoe profile` as a user runs it."""

import contextlib
import gzip
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smoe.core.route_trace import read_route_trace

ROOT = Path(__file__).parents[2]
HELDOUT = ROOT / "smoe" / "assets" / "heldout"
FAST = ("--in-process", "--threads", "1")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "prose.few.txt"
    path.write_text("Once upon a time there was a king.\n\nHe had a daughter.\n\nShe had a golden ball.\n")
    return path


def test_text_is_read_and_labelled(smoe: Callable, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "routes.safetensors"
    result = smoe("profile", "--data", str(texts), "--out", str(out), *FAST)
    assert (result.code, result.out) == (0, f"{out}: 3 sequences, 25 tokens\n")
    trace = read_route_trace(out)
    assert trace.labels == ("prose",) * 3
    assert not trace.phase.any()
    assert not list(tmp_path.glob("*.parts"))


def test_a_quarter_of_the_experts_in_memory_records_the_same(smoe: Callable, texts: Path, tmp_path: Path) -> None:
    whole, *parts = [tmp_path / f"{name}.safetensors" for name in ("all", "quarter", "host")]
    quarter = ("--expert-memory", "25%")
    for out, options in ((whole, ()), (parts[0], quarter), (parts[1], (*quarter, "--expert-tier", "host"))):
        assert smoe("profile", "--data", str(texts), "--out", str(out), *options, *FAST).code == 0
    assert all(part.read_bytes() == whole.read_bytes() for part in parts)


@pytest.mark.ray
def test_through_actors_the_answers_of_prompts_are_recorded_too(smoe: Callable, tmp_path: Path) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "routes.safetensors.gz"
    prompts.write_text('{"prompt": "Once upon"}\n{"question": "The king"}\n')
    arguments = ("--max-tokens", "4", "--record-logits", "--threads", "1")
    assert smoe("profile", "--data", str(prompts), "--out", str(out), *arguments).code == 0
    trace = read_route_trace(out)
    assert trace.num_sequences == 2
    assert int(trace.phase.sum()) == 2 * 3
    assert trace.router_logits is not None


def test_a_killed_run_goes_on_where_it_was(smoe: Callable, tmp_path: Path) -> None:
    data = tmp_path / "prose.txt"
    data.write_text(gzip.decompress((HELDOUT / "prose.txt.gz").read_bytes()).decode()[:50_000])
    out, other = tmp_path / "killed.safetensors", tmp_path / "whole.safetensors"
    arguments = ["profile", "--data", str(data), "--in-process", "--threads", "1", "--pack", "--max-sequence", "128"]
    command = [sys.executable, "-m", "smoe", *arguments, "--out", str(out)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    while not list((tmp_path / "killed.safetensors.parts").glob("*.safetensors")):
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert process.wait(0.02) is None, "it ended before its first part"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not out.exists()
    again = smoe(*arguments, "--out", str(out))
    assert again.code == 0, again.err
    there = int(again.err.split(" sequences are there already")[0].rpartition(" ")[2])
    assert there >= 8_192 // 128
    assert smoe(*arguments, "--out", str(other)).code == 0
    killed, whole = read_route_trace(out), read_route_trace(other)
    assert np.array_equal(killed.token_ids, whole.token_ids)
    assert np.array_equal(killed.expert_ids, whole.expert_ids)
    assert out.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--sample", "0"), r"sample: 0\.0 \(above 0 up to 1\)"),
        (("--seed", "3"), r"seed: 3 \(has no effect without --sample\)"),
        (("--max-tokens", "0"), r"max_tokens: 0 \(integer >= 1\)"),
        (("--max-tokens", "1024"), r"max_tokens: 1024 \(the context has 1024 tokens\)"),
        (("--max-sequence", "1024"), r"max_sequence: 1024 \(the context has 1024 tokens\)"),
        (("--pack", "--max-tokens", "3"), r"pack: True \(not with --max-tokens"),
        (("--expert-memory", "25%", "--expert-policy", "speed-first"), r"expert_policy: 'speed-first' \(a lossless"),
        (("--data", "none.txt"), r"data: 'none\.txt' \(a readable file: No such file"),
    ],
)
@pytest.mark.usefixtures("nothing_starts")
def test_bad_arguments(smoe: Callable, texts: Path, tmp_path: Path, extra: tuple[str, ...], message: str) -> None:
    result = smoe("profile", "--data", str(texts), "--out", str(tmp_path / "o"), *extra)
    assert result.code == 2
    assert re.search(message, result.err)
    assert len(result.err.splitlines()) == 1


@pytest.mark.usefixtures("nothing_starts")
def test_a_model_without_a_tokenizer(smoe: Callable, texts: Path, tiny: Path, tmp_path: Path) -> None:
    result = smoe("profile", "--data", str(texts), "--out", str(tmp_path / "o"), "--model", str(tiny))
    assert result.code == 2
    assert "(a folder with a tokenizer)" in result.err
