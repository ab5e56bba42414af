"""A deployment file, as its users start it: here, without room, and submitted to a running head."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from smoe.actors.client import group_plan
from smoe.core.cluster_config import ClusterConfig
from smoe.core.config import EngineConfig
from smoe.core.parallel import ParallelConfig
from smoe.core.sampling import SamplingParams
from smoe.llm import LLM
from tests.actors import test_regroup
from tests.actors.traced import Traced

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
head = test_regroup.head
PROMPT = "Once upon a time"
# float32, so that the order of additions does not decide between two tokens.
ARGUMENTS = ("--prompt", PROMPT, "--max-tokens", "12", "--dtype", "float32", "--json")


@pytest.fixture(scope="module")
def expected() -> list[int]:
    with LLM(dtype="float32", threads=1) as llm:
        [answer] = llm.generate(PROMPT, SamplingParams(max_tokens=12))
    return list(answer.token_ids)


def test_a_plan_has_what_the_cluster_section_says() -> None:
    config = EngineConfig(parallel=ParallelConfig(tensor_parallel_size=2))
    cluster = ClusterConfig(cpus=3, gpus=1, resources={"rack": 0.5}, strategy="SPREAD", placement_timeout_s=7.0)
    plan = group_plan(config, cluster)
    assert plan.bundle == {"CPU": 3.0, "GPU": 1.0, "rack": 0.5}
    assert (plan.num_shards, plan.threads, plan.strategy, plan.placement_timeout_s) == (2, 3, "SPREAD", 7.0)


@pytest.mark.parametrize(("device", "gpus", "reserved"), [("cuda", None, 1), ("cpu", None, 0), ("auto", 2, 2)])
def test_a_gpu_is_reserved_where_it_is_computed_on(device: str, gpus: int | None, reserved: int) -> None:
    plan = group_plan(EngineConfig(device=device, threads=2), ClusterConfig(gpus=gpus))  # type: ignore[arg-type]
    assert plan.bundle == {"CPU": 2.0} | ({"GPU": float(reserved)} if reserved else {})


def shm_of(pids: set[int], before: set[str]) -> set[str]:
    """Shared memory that came since `before` and is named after one of the processes."""
    new = set(os.listdir("/dev/shm")) - before
    return {name for name in new if pids & {int(number) for number in re.findall(r"\d+", name)}}


def test_two_shards_answer_as_one_process_and_leave_nothing(traced: Traced, expected: list[int]) -> None:
    shm = set(os.listdir("/dev/shm"))
    process = traced.start("generate", "cluster_configs/cpu_local.yaml", *ARGUMENTS)
    pids: set[int] = set()
    while process.poll() is None:
        pids |= {each.pid for each in traced.descendants()}
        try:
            out, err = process.communicate(timeout=0.5)
        except subprocess.TimeoutExpired:
            continue
    assert process.returncode == 0, err
    assert err == "cluster_configs/cpu_local.yaml, but from the command line: model.dtype float32 (not auto)\n"
    assert json.loads(out)[0]["token_ids"] == expected
    assert len(pids) >= 4, "Ray, an engine and two shards"
    traced.check_nothing_is_left(shm)
    assert not shm_of(pids, shm)


def test_without_room_nothing_stays_and_the_table_is_shown(traced: Traced, tmp_path: Path) -> None:
    shm = set(os.listdir("/dev/shm"))
    file = tmp_path / "d.yaml"
    file.write_text("cluster: {cpus: 1, resources: {unobtainium: 1}, placement_timeout_s: 1}")
    process = traced.start("generate", str(file), "--prompt", "x")
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (2, "")
    error, columns, demanded, node = err.splitlines()
    assert error == "error: placement: 1 x (CPU 1, unobtainium 1) by PACK (room for 0 on 1 node after 1 s)"
    assert re.fullmatch(r"node +CPU free/all +unobtainium free/all +shards that fit", columns)
    assert re.fullmatch(r"demanded +1 x 1 +1 x 1 +1", demanded)
    assert re.fullmatch(r"[\d.]+ +1/1 +0/0 +0", node)
    traced.check_nothing_is_left(shm)


@pytest.mark.timeout(600)
def test_a_job_from_a_clean_directory_on_a_running_head(
    head: tuple[str, dict[str, str]], expected: list[int], tmp_path: Path
) -> None:
    address, env = head
    clean, mark = tmp_path / "clean", tmp_path / "the-shards-ran-what-was-submitted"
    for name in ("smoe", "actors", "collectives", "clustering", "kernels", "cluster_configs"):
        shutil.copytree(ROOT / name, clean / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    with (clean / "actors" / "shard.py").open("a") as shard:
        shard.write(f"\n__import__('pathlib').Path({str(mark)!r}).touch()\n")
    ray = str(Path(sys.executable).with_name("ray"))
    command = [ray, "job", "submit", f"--address={address}", "--working-dir", ".", "--"]
    command += [sys.executable, "-m", "smoe", "generate", "cluster_configs/cpu_local.yaml", *ARGUMENTS]
    for _ in range(6):
        done = subprocess.run(command, cwd=clean, env=env, capture_output=True, text=True, check=False, timeout=280)
        if "No available agent" not in done.stdout + done.stderr:  # a head that answers may not take jobs yet
            break
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    [answer] = re.findall(r"^\{\"text\".*\}$", done.stdout, flags=re.MULTILINE)
    assert json.loads(answer)["token_ids"] == expected
    assert mark.exists()
    actors = [each for each in of_this_head(env) if re.match(r"ray::(Shard|Engine)", " ".join(each.cmdline()))]
    assert not psutil.wait_procs(actors, timeout=30)[1]


def of_this_head(env: dict[str, str]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("RAY_AUTH_TOKEN_PATH") == env["RAY_AUTH_TOKEN_PATH"]:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
