"""RayClient on a local Ray: the same answers as in one process, whatever happens to the shards."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import ray

from smoe.actors.client import RayClient, open_ray_client
from smoe.actors.controller import RestartLimits
from smoe.actors.group import GroupPlan
from smoe.core.config import EngineConfig
from smoe.core.errors import CheckpointError, RequestError, StartupError
from smoe.core.request import Delta, Request
from smoe.core.sampling import SamplingParams
from smoe.llm import LLM
from tests.actors import fakes

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]

PROMPTS = ["Once upon a time", "def main():", "The king said to", "1 + 1 ="]


def request(name: str, prompt: list[int], count: int) -> Request:
    return Request(request_id=name, prompt_token_ids=tuple(prompt), params=SamplingParams(max_tokens=count))


@contextmanager
def client_of(**plan: Any) -> Iterator[RayClient]:
    client = RayClient(EngineConfig(), GroupPlan(**{"build": fakes.build, **plan}))
    try:
        yield client
    finally:
        client.shutdown()


def kill_shard(client: RayClient, rank: int = 0) -> None:
    os.kill(client.shard_pids()[rank], signal.SIGKILL)


def collect(client: RayClient, kill_at: int | None = None) -> dict[str, list[Delta]]:
    """All deltas to the end, by request; kills a shard once, when `kill_at` tokens have come."""
    got: dict[str, list[Delta]] = {}
    count = 0
    while deltas := client.poll():
        for delta in deltas:
            got.setdefault(delta.request_id, []).append(delta)
            count += len(delta.token_ids)
        if kill_at is not None and count >= kill_at:
            kill_shard(client)
            kill_at = None
    assert kill_at is None, "the run ended before the kill"
    return got


def tokens(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("link", ["socket", "compiled"])
def test_requests_at_once_get_their_tokens_in_order(num_shards: int, link: str) -> None:
    with client_of(num_shards=num_shards, link=link) as client:
        prompts = {f"r{i}": [1, 2, 3 + i] for i in range(4)}
        client.submit([request(name, prompt, 30) for name, prompt in prompts.items()])
        got = collect(client)
        assert client.poll() == []
    for name, prompt in prompts.items():
        assert tokens(got[name]) == fakes.expected_tokens(prompt, 30)
        assert [delta.finish_reason for delta in got[name][:-1]] == [None] * (len(got[name]) - 1)
        assert got[name][-1].finish_reason == "length"


def test_poll_returns_after_its_timeout_and_at_once_when_idle() -> None:
    with client_of() as client:
        assert client.poll() == []
        client.submit([request("r", [1], 5)])
        while not client.poll(timeout_s=0.0):
            pass


def test_abort_ends_one_request() -> None:
    with client_of() as client:
        client.submit([request("long", [1], 500), request("other", [2], 40)])
        client.abort(["long", "unknown"])
        got = collect(client)
    assert got["long"][-1].finish_reason == "abort"
    assert tokens(got["other"]) == fakes.expected_tokens([2], 40)


def test_an_impossible_request_is_refused_and_costs_nothing_else() -> None:
    with client_of() as client:
        with pytest.raises(RequestError, match="prompt_token_ids: 100 "):
            client.submit([request("good", [1], 3), request("bad", [100], 3)])
        assert client.poll() == []
        client.submit([request("good", [1], 3)])
        assert tokens(collect(client)["good"]) == fakes.expected_tokens([1], 3)


@pytest.mark.parametrize("link", ["socket", "compiled"])
def test_a_killed_shard_changes_no_token(link: str) -> None:
    with client_of(link=link, num_shards=2) as client:
        client.submit([request("a", [1, 2], 300), request("b", [3], 200)])
        got = collect(client, kill_at=20)
        assert client.state().phase == "running"
        assert client.state().generation == 2
    assert tokens(got["a"]) == fakes.expected_tokens([1, 2], 300)
    assert tokens(got["b"]) == fakes.expected_tokens([3], 200)


def test_a_shard_killed_while_idle_is_replaced() -> None:
    with client_of() as client:
        kill_shard(client)
        client.submit([request("r", [5], 20)])
        assert tokens(collect(client)["r"]) == fakes.expected_tokens([5], 20)


def test_shards_that_keep_dying_end_the_requests_with_the_cause() -> None:
    config, limits = EngineConfig(), RestartLimits(max_deaths=1, window_s=600.0)
    client = RayClient(config, GroupPlan(build=fakes.build_fragile), limits)
    with closing_client(client), pytest.raises(StartupError, match="died 2 times within 600 s; last cause: .*fell off"):
        client.submit([request("r", [1], 200)])
        got = collect(client)["r"]
        assert got[-1].finish_reason == "error"
        assert "fell off the bus" in str(got[-1].error)
        assert tokens(got) == fakes.expected_tokens([1], len(tokens(got)))
        client.stats()


def test_a_dead_engine_ends_the_requests() -> None:
    with client_of() as client:
        client.submit([request("r", [1], 500)])
        client.poll()
        os.kill(client.engine_pid(), signal.SIGKILL)
        last = collect(client)["r"][-1]
    assert (last.finish_reason, last.usage and last.usage.prompt_tokens) == ("error", 1)
    assert "engine process died" in str(last.error)


@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        ({"build": fakes.build_broken}, CheckpointError, r"^model.safetensors: tensor `x` is missing$"),
        ({"build": fakes.build_buggy}, StartupError, r"^KeyError: 'layers.0'$"),
        ({"build": fakes.build_killed}, StartupError, r"^shard 0 died while loading \("),
        ({"num_shards": 99, "placement_timeout_s": 0.5}, StartupError, r"^placement: no room for 99 x \{'CPU': 1.0\}"),
    ],
)
def test_a_start_that_fails_says_its_first_cause_and_leaves_nothing(
    plan: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught, client_of(**plan):
        pass
    assert "\n" not in str(caught.value)
    with client_of() as client:  # the room was given back
        assert client.state().phase == "running"


def test_after_shutdown_calls_raise() -> None:
    with client_of() as client:
        pass
    client.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        client.poll()
    with pytest.raises(RuntimeError, match="shut down"):
        client.submit([request("r", [1], 1)])


def test_the_builtin_model_answers_as_in_one_process() -> None:
    params = [SamplingParams(max_tokens=24), SamplingParams(max_tokens=24, temperature=0.8, seed=7, logprobs=2)] * 2
    with LLM(expert_memory="25%", dtype="float32") as here:
        alone = here.generate(PROMPTS, params)
    with LLM(expert_memory="25%", dtype="float32", distributed=True, threads=1) as there:
        together = there.generate(PROMPTS, params)
        experts = there.stats().experts
        streamed = list(there.stream(PROMPTS[0], params[0]))
    for a, b in zip(alone, together, strict=True):
        assert (a.token_ids, a.text, a.logprobs, a.finish_reason) == (b.token_ids, b.text, b.logprobs, b.finish_reason)
    assert "".join(delta.text for delta in streamed) == alone[0].text
    assert experts.misses > 0
    assert 0 < experts.peak_bytes <= experts.budget_bytes


def test_a_killed_shard_of_the_builtin_model_changes_no_token() -> None:
    with LLM(dtype="float32") as here:
        expected = here.generate(PROMPTS[0], SamplingParams(max_tokens=200, ignore_eos=True))[0].token_ids
        prompt = here.generate(PROMPTS[0], SamplingParams(max_tokens=1))[0].prompt_token_ids
    client = open_ray_client(EngineConfig(dtype="float32", threads=1))
    with closing_client(client):
        params = SamplingParams(max_tokens=200, ignore_eos=True)
        client.submit([Request(request_id="r", prompt_token_ids=prompt, params=params)])
        got = collect(client, kill_at=10)
        assert client.state().generation == 2
    assert tuple(tokens(got["r"])) == expected


@contextmanager
def closing_client(client: RayClient) -> Iterator[None]:
    try:
        yield
    finally:
        client.shutdown()


def test_ray_is_left_running_when_someone_else_started_it() -> None:
    with client_of():
        pass
    assert ray.is_initialized()
