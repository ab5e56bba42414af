"""Regroup jobs on Ray: killed and gone on with, and submitted to a running head as its users do."""

import contextlib
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from smoe.clustering.layer_job import RouteLayers, task_bytes
from smoe.core.errors import CapacityError
from smoe.core.route_trace import write_route_trace
from tests.actors.traced import Traced
from tests.clustering.routes import drawn

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
SLOW = ("--solver-option", "samples=64", "--solver-option", "kicks=40")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.safetensors"
    write_route_trace(path, drawn(3000, layers=6, experts=32, top_k=4, vocab=200))
    return path


def arguments(trace: Path, out: Path) -> tuple[str, ...]:
    return ("regroup", "--trace", str(trace), "--devices", "4", "--out", str(out), *SLOW)


@pytest.mark.timeout(600)
def test_a_killed_job_goes_on_from_its_finished_layers(traced: Traced, trace: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "p", tmp_path / "whole"
    process = traced.start(*arguments(trace, out), "--jobs", "1")
    while not list((tmp_path / "p.work").glob("layer-*.npz")):
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert process.wait(0.02) is None, "it ended before its first layer"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    for left in traced.descendants():
        left.kill()
    assert not out.exists()
    process = traced.start(*arguments(trace, out), "--jobs", "2")
    _, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    there = int(err.split(" of 6 layers are there already")[0].rpartition(" ")[2])
    assert 1 <= there < 6
    process = traced.start(*arguments(trace, whole), "--in-process")
    assert process.wait(280) == 0
    for name in ("placement.json", "tables.safetensors"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert max(layer["peak_rss_bytes"] for layer in json.loads((out / "run.json").read_text())["layers"]) > 0


@pytest.mark.usefixtures("local_ray")
def test_a_task_that_no_node_can_hold_is_refused() -> None:
    from smoe.actors.sweep import fan_out

    with pytest.raises(CapacityError, match=r"memory: a task takes up to 1,125,899,906,842,624 bytes \(the largest"):
        list(fan_out(len, [()], None, jobs=1, memory_bytes=2**50))  # type: ignore[arg-type]


_MEASURE = """
import pickle
import sys
from smoe.clustering.layer_job import LayerRules, solve_layer
from smoe.clustering.problem import Balance
from smoe.clustering.solver_options import configured_solver
from smoe.engine.rss import peak_rss_bytes
layer = pickle.load(open(sys.argv[1], "rb"))
solver = configured_solver("cross-entropy", {"samples": 8, "rounds": 1, "kicks": 0, "starts": 0})
solve_layer(layer, LayerRules(solver, Balance(), (16,) * 4, 0))
print(peak_rss_bytes())
"""


def test_a_task_stays_within_the_memory_that_it_reserves(tmp_path: Path) -> None:
    tokens = 300_000
    trace = drawn(tokens, layers=2, experts=64, top_k=8, vocab=5_000)
    file = tmp_path / "layer.pickle"
    with file.open("wb") as stream:
        pickle.dump(RouteLayers(trace, [0])[0], stream)
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(file)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) <= task_bytes(tokens, 8, 64)


@pytest.fixture
def head() -> Iterator[tuple[str, dict[str, str]]]:
    """A Ray head with its dashboard, as `ray start` makes it: (address of jobs, environment for its clients)."""
    directory = Path(tempfile.mkdtemp(prefix="smoe-head-", dir="/tmp"))
    token = directory / "token"
    token.write_text("0123456789abcdef" * 2)
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_worker_niceness": "0",  # at Ray's 15 an actor starts for a minute and more while others compute
    }
    port, dashboard = free_port(), free_port()
    ray = str(Path(sys.executable).with_name("ray"))
    command = [ray, "start", "--head", "--block", f"--port={port}", f"--dashboard-port={dashboard}", "--num-cpus=2"]
    command += ["--dashboard-host=127.0.0.1", "--node-ip-address=127.0.0.1", "--object-store-memory=80000000"]
    # Another Ray on this machine may have the port at which jobs are taken by default.
    command += [f"--temp-dir={directory}", "--disable-usage-stats", f"--dashboard-agent-listen-port={free_port()}"]
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "--block" in line:
                break
        assert process.poll() is None, "the head did not start"
        yield f"http://127.0.0.1:{dashboard}", env
    finally:
        # At once: asked to end, `ray start --block` waits half a minute for its servers.
        servers = psutil.Process(process.pid).children(recursive=True)
        for each in (process, *servers):
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                each.kill()
        process.wait()
        psutil.wait_procs(servers)
        shutil.rmtree(directory, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.timeout(600)
def test_a_job_submitted_to_a_running_head(head: tuple[str, dict[str, str]], trace: Path, tmp_path: Path) -> None:
    address, env = head
    out = tmp_path / "p"
    ray = str(Path(sys.executable).with_name("ray"))
    # Ray leaves out of the working directory what .gitignore names.
    command = [ray, "job", "submit", f"--address={address}", "--working-dir", "."]
    command += ["--", sys.executable, "-m", "smoe", *arguments(trace, out)]
    for _ in range(60):
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=280)
        if "No available agent" not in done.stdout + done.stderr:  # a head that answers may not take jobs yet
            break
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (out / "placement.json").exists(), done.stdout[-3000:]
    record = json.loads((out / "run.json").read_text())
    assert all(layer["peak_rss_bytes"] > 0 for layer in record["layers"])
    assert len(record["layers"]) == 6
