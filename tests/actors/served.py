"""Fake shards served by Ray Serve, and what their clients do."""

import re
import urllib.request
from functools import partial
from typing import Any

import psutil

from smoe.actors.client import RayClient
from smoe.actors.desk import standing
from smoe.actors.group import GroupPlan
from smoe.actors.serving import Serving, serve_plan
from smoe.core.cluster_config import ClusterConfig
from smoe.core.config import EngineConfig
from smoe.server.app import make_app
from smoe.server.config import ServerConfig
from tests.actors import fakes
from tests.server import statuses
from tests.server.streams import Stream, token_ids

PROMPT, LENGTH = [1, 2, 3], 400
BODY: dict[str, Any] = {"model": "fake", "prompt": PROMPT, "max_tokens": LENGTH, "return_token_ids": True}


def serving(build: Any = fakes.build, *, replicas: int = 1, **config: Any) -> Serving:
    server = ServerConfig(
        port=0,
        replicas=replicas,
        api_key=statuses.KEY,
        max_body_bytes=statuses.MAX_BODY_BYTES,
        max_queue=statuses.MAX_QUEUE,
        **config,
    )
    client = partial(RayClient, EngineConfig(), GroupPlan(build=build))
    plan = serve_plan(EngineConfig(threads=1), ClusterConfig(), server)[1]
    return Serving(partial(make_app, client, "fake", server), plan)


def until(served: Serving, stands: str, replicas: int = 1) -> Any:
    board, now = served.board(-1, 0.0), "starting"
    while (now := standing(board.reports, replicas, now)) != stands:  # type: ignore[arg-type]
        board = served.board(board.version, 10.0)
    return board.reports


def stream_of(served: Serving, **changes: Any) -> Stream:
    return Stream(served.port, {**BODY, **changes}, key=statuses.KEY)


def shards() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if "ray::Shard" in " ".join(p.cmdline())]


def generated(served: Serving) -> float:
    """Tokens, by the replica that happens to answer."""
    url = f"http://127.0.0.1:{served.port}/metrics"
    asked = urllib.request.Request(url, headers={"authorization": f"Bearer {statuses.KEY}"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        text = answer.read().decode()
    return float(re.search(r"^smoe:generation_tokens_total\S* (\S+)$", text, re.MULTILINE)[1])  # type: ignore[index]


def check_streams(served: Serving) -> None:
    streams = [stream_of(served, prompt=[*PROMPT, i]) for i in range(4)]
    first = [next(iter(stream)) for stream in streams]
    rest = [list(stream) for stream in streams]
    for i, events in enumerate([head, *tail] for head, tail in zip(first, rest, strict=True)):
        assert token_ids(events) == fakes.expected_tokens([*PROMPT, i], LENGTH)
        assert len(events) > LENGTH / 10
        assert events[-1]["choices"][0]["finish_reason"] == "length"
