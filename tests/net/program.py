"""`python -m tests.net.program answers SCHEDULE PLACEMENT` or `... killed`: one model over two hosts, as a user would.

Prints a line of JSON: the tokens of each request, the hosts of the ranks, and how often the group was started.
"""

import json
import os
import signal
import subprocess
import sys
from typing import Any

from smoe.actors.client import RayClient, open_ray_client
from smoe.core.request import Delta
from tests.actors.test_parallel import PROMPTS, answers, config, requests


def host_of(pid: int) -> str:
    """The namespace that a process is in."""
    done = subprocess.run(["ip", "netns", "identify", str(pid)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def killed(client: RayClient, tokens: int) -> dict[str, tuple[int, ...]]:
    """Answers while the rank on the other host is killed once, as soon as there are tokens."""
    client.submit(requests(client, tokens))
    found: dict[str, tuple[int, ...]] = {str(i): () for i in range(len(PROMPTS))}
    left, done = set(found), False
    while left:
        for delta in client.poll(60.0):
            found[delta.request_id] += delta.token_ids
            left -= _ended(delta)
        if not done and any(found.values()):
            os.kill(client.shard_pids()[1], signal.SIGKILL)
            done = True
    return found


def _ended(delta: Delta) -> set[str]:
    assert delta.finish_reason in (None, "length", "stop"), delta
    return set() if delta.finish_reason is None else {delta.request_id}


def main(what: str, *options: str) -> None:
    given: dict[str, Any] = dict(zip(("schedule", "placement"), options, strict=False))
    client = open_ray_client(config(timeout_s=20.0, **given))
    try:
        found = killed(client, 24) if what == "killed" else answers(client)
        state = client.state()
        print(
            json.dumps(
                {
                    "tokens": found,
                    "hosts": [host_of(pid) for pid in client.shard_pids()],
                    "generation": state.generation,
                }
            )
        )
    finally:
        client.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
