"""`smoe serve` over actors as a whole process: statuses, a killed shard, a drain by a signal, and nothing left."""

import os
import re
import signal

import pytest

from smoe.core.sampling import SamplingParams
from smoe.llm import LLM
from tests.actors.traced import Traced
from tests.server import statuses
from tests.server.streams import Stream, token_ids

pytestmark = [pytest.mark.ray, pytest.mark.slow]

BODY = {"model": "builtin", "prompt": "Once upon a time", "max_tokens": 300, "temperature": 0, "ignore_eos": True}
LIMITS = ("--max-queue", str(statuses.MAX_QUEUE), "--max-body-bytes", str(statuses.MAX_BODY_BYTES))


@pytest.fixture(scope="module")
def expected() -> list[int]:
    with LLM(threads=1) as llm:
        [answer] = llm.generate("Once upon a time", SamplingParams(max_tokens=300, ignore_eos=True))
    return list(answer.token_ids)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("ingress", ["ray-serve", "direct"])
def test_it_serves_mends_drains_and_leaves_nothing(traced: Traced, expected: list[int], ingress: str) -> None:
    shm = set(os.listdir("/dev/shm"))
    flags = ("serve", "--ingress", ingress, "--port", "0", "--threads", "1", *LIMITS)
    process = traced.start(*flags, SMOE_API_KEY=statuses.KEY)
    assert process.stderr is not None
    port = int(re.fullmatch(r"builtin at http://127.0.0.1:(\d+)/v1\n", process.stderr.readline())[1])  # type: ignore[index]
    call = statuses.Caller(port, "builtin")
    while call("GET", "/health", key=None)[0] != 200:
        assert process.poll() is None
    statuses.check_statuses(call)
    stream = Stream(port, {**BODY, "return_token_ids": True}, key=statuses.KEY)
    events = [next(iter(stream))]
    [shard] = [each for each in traced.descendants() if "ray::Shard" in " ".join(each.cmdline())]
    shard.kill()
    events += stream
    assert token_ids(events) == expected
    stream = Stream(port, {**BODY, "return_token_ids": True}, key=statuses.KEY)
    events = [next(iter(stream))]
    process.send_signal(signal.SIGTERM)
    events += stream
    assert token_ids(events) == expected
    assert process.wait(120) == 128 + signal.SIGTERM
    process.stderr.close()
    traced.check_nothing_is_left(shm)
