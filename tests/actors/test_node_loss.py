"""A node that is gone with a shard on it: its shard goes elsewhere, or the requests end with what is missing."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]


def outcome(spares: int) -> Any:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-m", "tests.actors.node_loss", str(spares)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_with_a_spare_node_no_token_changes() -> None:
    assert outcome(spares=1) == {"right": True, "tokens": 400, "error": None, "generation": 2}


def test_without_one_the_requests_end_with_what_is_missing() -> None:
    found = outcome(spares=0)
    assert found["right"]
    assert 0 < found["tokens"] < 400
    assert re.fullmatch(r"placement: 2 x \(CPU 1\) by SPREAD \(room for \d on 2 nodes after 20 s\)", found["error"])
