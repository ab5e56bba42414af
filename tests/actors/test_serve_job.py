"""`smoe serve` as a job on a running Ray head: it answers, and a stopped job leaves the cluster as it was."""

import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from smoe.core.sampling import SamplingParams
from smoe.llm import LLM
from tests.actors import test_deployment, test_regroup
from tests.server.streams import Stream, token_ids

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
head = test_regroup.head
OURS = r"ray::(Shard|Engine|Serve|Proxy|Desk)"
PROMPT = "Once upon a time"


@pytest.mark.timeout(900)
def test_a_job_serves_two_shards_until_it_is_stopped(head: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    address, env = head
    with LLM(dtype="float32", threads=1) as llm:
        [expected] = llm.generate(PROMPT, SamplingParams(max_tokens=12))
    clean, port = tmp_path / "clean", test_regroup.free_port()
    for name in ("smoe", "actors", "collectives", "clustering", "kernels", "cluster_configs"):
        shutil.copytree(ROOT / name, clean / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    ray = [str(Path(sys.executable).with_name("ray")), "job"]
    command = [
        *ray,
        "submit",
        f"--address={address}",
        "--working-dir",
        ".",
        "--no-wait",
        "--submission-id=serving",
        "--",
    ]
    command += [sys.executable, "-m", "smoe", "serve", "cluster_configs/cpu_local.yaml"]
    command += ["--port", str(port), "--dtype", "float32"]
    for _ in range(60):
        done = subprocess.run(command, cwd=clean, env=env, capture_output=True, text=True, check=False, timeout=280)
        if "No available agent" not in done.stdout + done.stderr:  # a head that answers may not take jobs yet
            break
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    def told(verb: str) -> str:
        asked = [*ray, verb, f"--address={address}", "serving"]
        return subprocess.run(asked, env=env, capture_output=True, text=True, check=False, timeout=280).stdout

    while not answers(port):
        status = told("status")
        assert not re.search("failed|stopped", status, re.IGNORECASE), told("logs")
    body = {"model": "builtin", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "return_token_ids": True}
    assert token_ids(list(Stream(port, body))) == list(expected.token_ids)
    told("stop")
    while "RUNNING" in told("status"):  # a question to the head takes a second
        pass
    left = [p for p in test_deployment.of_this_head(env) if re.match(OURS, " ".join(p.cmdline()))]
    assert not psutil.wait_procs(left, timeout=60)[1]


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            return json.load(answer)["status"] == "ok"
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
