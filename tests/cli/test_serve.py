"""`smoe serve` as a process: what it refuses, how it answers, and how signals end it."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.server import statuses
from tests.server.streams import Stream, token_ids

LIMITS = ["--max-queue", str(statuses.MAX_QUEUE), "--max-body-bytes", str(statuses.MAX_BODY_BYTES)]
LONG: dict[str, Any] = {"prompt": [5, 6], "max_tokens": 900, "temperature": 0, "ignore_eos": True, "model": "builtin"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--port", "70000"], r"port: 70000 \(0 to 65535"),
        (["--port", "x"], r"port: 'x' \(integer"),
        (["--host", ""], r"host: '' \(an address"),
        (["--replicas", "0"], r"replicas: 0 \(1 to 1024\)"),
        (["--ingress", "sideways"], r"ingress: 'sideways' \(one of ray-serve, direct\)"),
        (["--ingress", "direct", "--replicas", "2"], r"replicas: 2 \(1 with ingress direct"),
        (["--in-process", "--replicas", "2"], r"replicas: 2 \(1 with --in-process"),
        (["--in-process", "--ingress", "direct"], r"ingress: 'direct' \(has no effect with --in-process"),
        (["--max-queue", "0"], r"max_queue: 0 \(integer >= 1\)"),
        (["--request-timeout", "0"], r"request_timeout_s: 0.0 \(seconds above 0\)"),
        (["--drain-timeout", "-1"], r"drain_s: -1.0 \(seconds above 0\)"),
        (["--api-key", "schlüssel"], r"api_key: '\*\*\*' \(ASCII"),
        (["--api-key", ""], r"api_key: '\*\*\*' \(ASCII characters, at least one"),
        (["--in-process", "--host", "no host"], r"host: 'no host:8000' \(one to listen on: no such address here"),
    ],
)
def test_what_is_refused_says_field_value_and_limit(smoe: Callable, flags: list[str], message: str) -> None:
    result = smoe("serve", *flags)
    assert result.code == 2
    assert re.fullmatch(rf"error: {message}.*\n", result.err), result.err


def test_a_port_that_is_taken_is_one_line(smoe: Callable) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = smoe("serve", "--in-process", "--port", str(port))
    assert (result.code, result.err) == (
        2,
        f"error: port: '127.0.0.1:{port}' (one to listen on: Address already in use)\n",
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--replicas", "1024"], r"replicas: 1024 need [\d,]+ bytes \(there are [\d,]+ free\)"),
        (["--replicas", "2", "--expert-memory", "auto"], r"expert_memory: 'auto' \(a size with 2 replicas: .*\)"),
    ],
)
@pytest.mark.usefixtures("nothing_starts")
def test_replicas_that_this_machine_cannot_hold_are_refused(smoe: Callable, flags: list[str], message: str) -> None:
    result = smoe("serve", *flags)
    assert result.code == 2
    assert re.fullmatch(rf"error: {message}\n", result.err), result.err


def test_the_printed_deployment_has_what_was_asked_for_and_no_key(smoe: Callable) -> None:
    result = smoe("serve", "--print-config", "--port", "0", "--replicas", "3", "--api-key", "secret")
    assert result.code == 0
    assert re.search(r"^serve:\n  host: 127.0.0.1\n  port: 0\n(  .*\n)*  replicas: 3\n", result.out, re.MULTILINE)
    assert "secret" not in result.out


@contextmanager
def server(*flags: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """In one process; (it, its port) once the model is loaded."""
    command = [sys.executable, "-m", "smoe", "serve", "--in-process", "--port", "0", "--threads", "1", *flags]
    process = subprocess.Popen(command, env={**os.environ, **env}, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        port = int(re.fullmatch(r"\S+ at http://127.0.0.1:(\d+)/v1\n", line)[1])  # type: ignore[index]
        call = statuses.Caller(port, "builtin")
        while call("GET", "/health", key=None)[0] != 200:
            assert process.poll() is None
        yield process, port
    finally:
        process.kill()
        process.wait()
        process.stderr.close()  # type: ignore[union-attr]


def test_every_status_and_a_drain_by_a_signal() -> None:
    with server(*LIMITS, SMOE_API_KEY=statuses.KEY) as (process, port):
        call = statuses.Caller(port, "builtin")
        statuses.check_statuses(call)
        stream = Stream(port, {**LONG, "return_token_ids": True}, key=statuses.KEY)
        events = [next(iter(stream))]
        process.send_signal(signal.SIGTERM)
        while (answer := call.complete())[0] == 200:
            pass
        assert (answer[0], answer[1]["retry-after"]) == (503, "1")
        assert answer[2]["error"]["code"] in ("draining", "model_closed")
        events += stream
        assert len(token_ids(events)) == 900
        assert process.wait(60) == 128 + signal.SIGTERM
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_second_signal_ends_it_at_once() -> None:
    with server() as (process, port):
        streams = [Stream(port, LONG) for _ in range(8)]
        firsts = [next(iter(stream)) for stream in streams]
        process.send_signal(signal.SIGTERM)
        while statuses.Caller(port, "builtin")("GET", "/health", key=None)[2]["status"] != "draining":
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        assert len(firsts) == 8


def test_weights_that_do_not_load_end_it_with_one_line(smoe: Callable, tmp_path: Path) -> None:
    from smoe.models.loading import open_checkpoint

    folder = tmp_path / "broken"
    shutil.copytree(open_checkpoint("builtin").folder, folder)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.input_layernorm.weight"
    tensors[name] = tensors[name] * float("nan")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    result = smoe("serve", "--in-process", "--port", "0", "--model", str(folder))
    assert (result.code, result.out) == (1, "")
    where, error = result.err.splitlines()
    assert where.startswith("broken at http://127.0.0.1:")
    assert re.fullmatch(rf"error: .*{name} holds values that are not finite", error)
