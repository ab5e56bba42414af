"""RayClient on a local Ray: the same answers as in one process, whatever happens to the shards."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from smoe.actors.client import RayClient, health_of
from smoe.actors.controller import GroupState, RestartLimits
from smoe.actors.group import GroupPlan
from smoe.core.client import EngineHealth
from smoe.core.config import EngineConfig
from smoe.core.errors import CheckpointError, RequestError, StartupError
from smoe.core.parallel import ParallelConfig
from smoe.core.request import Delta, Request, Usage
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


@pytest.fixture(scope="module")
def shared() -> Iterator[RayClient]:
    """Two shards that several tests use one after another; it survives what they do to it."""
    with client_of(num_shards=2) as client:
        yield client


def check_requests_at_once(client: RayClient, kill_at: int | None = None) -> None:
    prompts = {f"r{i}": [1, 2, 3 + i] for i in range(4)}
    client.submit([request(name, prompt, 60) for name, prompt in prompts.items()])
    got = collect(client, kill_at)
    for name, prompt in prompts.items():
        assert tokens(got[name]) == fakes.expected_tokens(prompt, 60)
        assert [delta.finish_reason for delta in got[name][:-1]] == [None] * (len(got[name]) - 1)
        assert got[name][-1].finish_reason == "length"
        assert got[name][-1].usage == Usage(3, 60)


def test_requests_at_once_get_their_tokens_in_order(shared: RayClient) -> None:
    check_requests_at_once(shared)
    assert shared.poll() == []


def test_poll_returns_after_its_timeout(shared: RayClient) -> None:
    shared.submit([request("r", [1], 5)])
    got: list[Delta] = []
    while not got or got[-1].finish_reason is None:
        got += shared.poll(timeout_s=0.0)
    assert tokens(got) == fakes.expected_tokens([1], 5)


def test_text_needs_a_tokenizer(shared: RayClient) -> None:
    assert shared.decode_text([1]) is None
    with pytest.raises(RequestError, match=r"prompt: 'hello' .*no tokenizer"):
        shared.encode_text("hello")


def test_abort_ends_one_request(shared: RayClient) -> None:
    shared.submit([request("long", [1], 500), request("other", [2], 40)])
    shared.abort(["long", "unknown"])
    got = collect(shared)
    assert got["long"][-1].finish_reason == "abort"
    assert tokens(got["other"]) == fakes.expected_tokens([2], 40)


def test_a_submission_whose_answer_is_lost_is_taken_back(shared: RayClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray Serve takes calls back when a client leaves, while the engine may have the request."""
    call = shared._call

    def lost(method: str, *args: Any) -> Any:
        call(method, *args)
        raise StartupError("the answer is lost")

    monkeypatch.setattr(shared, "_call", lost)
    with pytest.raises(StartupError, match="the answer is lost"):
        shared.submit([request("lost", [5], 1000)])
    monkeypatch.undo()
    shared.submit([request("next", [6], 40)])
    seen: list[Delta] = []
    while not seen or seen[-1].finish_reason is None:
        seen += shared.poll(10.0)
    assert {delta.request_id for delta in seen} == {"next"}
    assert [token for delta in seen for token in delta.token_ids] == fakes.expected_tokens([6], 40)


def test_an_impossible_request_is_refused_and_costs_nothing_else(shared: RayClient) -> None:
    with pytest.raises(RequestError, match="prompt_token_ids: 100 "):
        shared.submit([request("good", [1], 3), request("bad", [100], 3)])
    assert shared.poll() == []
    shared.submit([request("good", [1], 3)])
    assert tokens(collect(shared)["good"]) == fakes.expected_tokens([1], 3)


def test_a_killed_shard_changes_no_token(shared: RayClient) -> None:
    before = shared.state().generation
    steps = shared.stats().steps
    check_requests_at_once(shared, kill_at=20)
    assert shared.state().phase == "running"
    assert shared.state().generation == before + 1
    assert shared.stats().steps >= steps + 60


def test_a_shard_killed_while_idle_is_replaced(shared: RayClient) -> None:
    kill_shard(shared, rank=1)
    shared.submit([request("r", [5], 20)])
    assert tokens(collect(shared)["r"]) == fakes.expected_tokens([5], 20)


def test_health_is_told_while_shards_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    plan = GroupPlan(build=fakes.build_held, num_shards=2)
    gate = tmp_path / "open"
    gate.touch()
    with closing_client(RayClient(EngineConfig(model=str(tmp_path)), plan)) as client:
        assert client.health() == EngineHealth("running")
        gate.unlink()
        client.submit([request("r", [5], 20)])
        kill_shard(client)
        early: list[Delta] = []
        while client.health().phase == "running":
            early += client.poll(0.05)
        found = client.health()
        assert found.phase == "restarting"
        assert re.match(r"start 2, after: ", str(found.detail))
        gate.touch()
        assert tokens([*early, *collect(client)["r"]]) == fakes.expected_tokens([5], 20)
        assert client.health() == EngineHealth("running")


def test_health_of_a_group_that_has_failed_is_its_first_cause() -> None:
    state = GroupState("failed", 4, (1.0,), StartupError("the shards died 4 times"), "shard 0 ended")
    assert health_of(state) == EngineHealth("failed", "the shards died 4 times")


def test_the_compiled_link_does_the_same() -> None:
    with client_of(num_shards=2, link="compiled") as client:
        check_requests_at_once(client)
        check_requests_at_once(client, kill_at=20)


def test_shards_that_keep_dying_end_the_requests_with_the_cause() -> None:
    config, limits = EngineConfig(), RestartLimits(max_deaths=1, window_s=600.0)
    client = RayClient(config, GroupPlan(build=fakes.build_fragile), limits)
    with closing_client(client):
        client.submit([request("r", [1], 200)])
        got = collect(client)["r"]
        assert got[-1].finish_reason == "error"
        assert "fell off the bus" in str(got[-1].error)
        assert tokens(got) == fakes.expected_tokens([1], len(tokens(got)))
        with pytest.raises(StartupError, match=r"died 2 times within 600 s; last cause: .*fell off the bus"):
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
        (
            {"num_shards": 99, "placement_timeout_s": 0.5},
            StartupError,
            r"^placement: 99 x \(CPU 1\) by PACK \(room for",
        ),
        (
            {"resources": {"unobtainium": 0.5}, "placement_timeout_s": 0.5},
            StartupError,
            r"^placement: 1 x \(CPU 1, unobtainium 0.5\) by PACK \(room for 0 on 1 node after 0.5 s\)$",
        ),
    ],
)
def test_a_start_that_fails_says_its_first_cause_and_leaves_nothing(
    plan: dict[str, Any], error: type[Exception], message: str
) -> None:
    before = _places_held()
    with pytest.raises(error, match=message) as caught, client_of(**plan):
        pass
    assert "\n" not in str(caught.value)
    assert _places_held() == before, "the room is given back"


def test_a_start_without_room_shows_what_each_node_has() -> None:
    with pytest.raises(StartupError) as caught, client_of(num_shards=99, strategy="SPREAD", placement_timeout_s=0.5):
        pass
    head, demanded, node = caught.value.details.splitlines()
    assert head.split() == ["node", "CPU", "free/all", "shards", "that", "fit"]
    assert demanded.split() == ["demanded", "99", "x", "1", "99"]
    assert re.fullmatch(r"[\d.]+ +\d+/8 +\d+", node)


def test_a_step_that_hangs_costs_no_token(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = EngineConfig(model=str(tmp_path), parallel=ParallelConfig(step_timeout_s=3.0))
    with closing_client(RayClient(config, GroupPlan(build=fakes.build_hanging_once))) as client:
        check_requests_at_once(client)
        assert client.state().generation >= 2


@pytest.mark.parametrize("busy", [False, True])
def test_a_process_that_is_stopped_but_not_dead_is_replaced(busy: bool) -> None:
    config = EngineConfig(parallel=ParallelConfig(timeout_s=4.0))
    with closing_client(RayClient(config, GroupPlan(build=fakes.build, num_shards=2))) as client:
        if busy:
            client.submit([request("r", [5], 400)])
            client.poll()
        os.kill(client.shard_pids()[1], signal.SIGSTOP)
        if not busy:
            while client.state().generation == 1:
                assert client.poll(0.1) == []
            client.submit([request("r", [5], 400)])
        got = collect(client)["r"]
        assert got[-1].finish_reason == "length"
        assert client.state().generation >= 2
        stopped = [p for p in psutil.Process().children(recursive=True) if p.status() == psutil.STATUS_STOPPED]
        psutil.wait_procs(stopped, timeout=30)
        assert not [p for p in stopped if p.is_running()]


def _places_held() -> int:
    return sum(group["state"] != "REMOVED" for group in ray.util.placement_group_table().values())


def test_after_shutdown_calls_raise() -> None:
    with client_of() as client:
        pass
    client.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        client.poll()
    with pytest.raises(RuntimeError, match="shut down"):
        client.submit([request("r", [1], 1)])


@contextmanager
def closing_client(client: RayClient) -> Iterator[RayClient]:
    try:
        yield client
    finally:
        client.shutdown()


def test_the_builtin_model_answers_as_in_one_process_also_with_a_killed_shard() -> None:
    params = [SamplingParams(max_tokens=24), SamplingParams(max_tokens=24, temperature=0.8, seed=7, logprobs=2)] * 2
    long = SamplingParams(max_tokens=150, ignore_eos=True)
    with LLM(expert_memory="25%", dtype="float32") as here:
        alone = here.generate(PROMPTS, params)
        undisturbed = here.generate(PROMPTS[0], long)[0]
    with LLM(expert_memory="25%", dtype="float32", distributed=True, threads=1) as there:
        together = there.generate(PROMPTS, params)
        experts = there.stats().experts
        disturbed: list[Delta] = []
        for delta in there.stream(PROMPTS[0], long):
            disturbed.append(delta)
            if len(disturbed) == 10:
                assert isinstance(there.client, RayClient)
                kill_shard(there.client)
        assert there.stats().experts.hits > experts.hits
    for a, b in zip(alone, together, strict=True):
        assert (a.token_ids, a.text, a.logprobs, a.finish_reason) == (b.token_ids, b.text, b.logprobs, b.finish_reason)
    assert tuple(tokens(disturbed)) == undisturbed.token_ids
    assert "".join(delta.text for delta in disturbed) == undisturbed.text
    assert experts.misses > 0
    assert 0 < experts.peak_bytes <= experts.budget_bytes
