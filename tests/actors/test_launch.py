"""What a whole `smoe` process leaves behind: no process, no file, and no Ray that it did not start."""

import json
import os
import signal
from pathlib import Path

import pytest
import ray

from smoe.actors.launch import open_ray
from smoe.core.errors import StartupError
from tests.actors.traced import Traced

pytestmark = pytest.mark.ray

GENERATE = ("generate", "--prompt", "Once upon a time", "--max-tokens", "4", "--threads", "1")


def test_generate_prints_json_alone_and_leaves_nothing(traced: Traced) -> None:
    shm_before = set(os.listdir("/dev/shm"))
    process = traced.start(*GENERATE, "--json", "--expert-memory", "25%")
    out, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, "")
    [answer] = json.loads(out)
    assert len(answer["token_ids"]) == 4
    assert answer["stats"]["bytes_moved"] > 0
    traced.check_nothing_is_left(shm_before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_of_the_terminals_group_ends_everything(traced: Traced, number: signal.Signals) -> None:
    shm_before = set(os.listdir("/dev/shm"))
    process = traced.start("generate", "--prompt", "Once", "--max-tokens", "1000", "--ignore-eos", "--threads", "1")
    assert process.stdout is not None
    assert process.stdout.read(1), "it generates"
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert err == ""
    traced.check_nothing_is_left(shm_before)


@pytest.mark.usefixtures("local_ray")
def test_a_running_cluster_is_used_and_left_running(traced: Traced) -> None:
    address = ray.get_runtime_context().gcs_address
    before = _shards_started()
    process = traced.start(*GENERATE, RAY_ADDRESS=address)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert out.startswith(", the")
    assert _shards_started() == before + 1
    traced.check_nothing_is_left(set(os.listdir("/dev/shm")))
    assert ray.is_initialized()


def _shards_started() -> int:
    """Actors of class Shard that the shared Ray has ever had."""
    return sum(actor["ActorClassName"] == "Shard" for actor in ray._private.state.actors().values())


def test_an_address_where_no_cluster_runs_is_one_line(traced: Traced) -> None:
    process = traced.start(*GENERATE, RAY_ADDRESS="127.0.0.1:1")
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("error: RAY_ADDRESS: '127.0.0.1:1' (a running Ray cluster; ")
    assert err.count("\n") == 1


@pytest.mark.usefixtures("local_ray")
def test_a_session_on_a_ray_of_someone_else_does_not_end_it() -> None:
    session = open_ray(num_cpus=1)
    assert not session.local
    session.close()
    assert ray.is_initialized()


def test_a_local_ray_that_does_not_start_is_a_startup_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(**_: object) -> None:
        raise RuntimeError("no port is free\nand a long story")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises(StartupError, match=r"^the local Ray did not start \(no port is free\)$"):
        open_ray(num_cpus=1)


def test_directories_of_killed_processes_are_swept(tmp_path: Path) -> None:
    from smoe.actors.launch import _sweep

    dead, living, foreign = (tmp_path / name for name in ("smoe-ray-4194999-x", f"smoe-ray-{os.getpid()}-x", "ray"))
    for folder in (dead, living, foreign):
        folder.mkdir()
    _sweep(tmp_path)
    assert [folder.exists() for folder in (dead, living, foreign)] == [False, True, True]
