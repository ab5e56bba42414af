"""A study against a scripted server: what is sent, what is counted, what the server says of itself."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from smoe.bench.slo.client import Target
from smoe.bench.slo.study import Offered, Study, attainment
from smoe.bench.slo.timeline import Timeline, read_series, watched
from smoe.core.errors import StartupError
from smoe.metrics.slo import Slo
from smoe.workload.demand import Demand
from tests.bench.toy_server import Caller, HandClock, toy_server

METRICS = """\
# TYPE smoe:num_requests_running gauge
smoe:num_requests_running 3
# TYPE smoe:num_requests_waiting gauge
smoe:num_requests_waiting{replica="a"} 1
smoe:num_requests_waiting{replica="b"} 2
# TYPE smoe:expert_uses counter
smoe:expert_uses_total{outcome="hit"} 70
smoe:expert_uses_total{outcome="late"} 10
smoe:expert_uses_total{outcome="cold_miss"} 20
"""


@contextmanager
def running(play: Callable[[Caller], Awaitable[None]]) -> Iterator[str]:
    """The toy on a thread of its own, as a study has event loops of its own."""
    ready, done = threading.Event(), asyncio.Event()
    found: list[str] = []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with toy_server(play) as url:
            found.append(url)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait(20)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(20)
        loop.close()


def study(url: str, **changes: object) -> Study:
    options: dict[str, object] = {
        "target": Target(base_url=url, model="toy"),
        "demand": Demand(num_requests=6, input_len=4, output_len=2, seed=3),
        "slo": Slo(),
        "text": range(1000),
        "repeats": 2,
        **changes,
    }
    return Study(**options)  # type: ignore[arg-type]


def test_repeats_ask_for_other_prompts_and_warming_up_is_not_counted() -> None:
    bodies: list[dict[str, object]] = []

    async def play(caller: Caller) -> None:
        if caller.path == "/metrics":
            await caller.head("404 Not Found")
            return
        bodies.append(caller.body)
        await caller.head()
        await caller.token(finish="length")
        await caller.end(4, 2)

    with running(play) as url:
        asked = study(url)
        asked.warm_up(3)
        warm = len(bodies)
        one, other = asked.at(Offered(rate=2000.0))
        [again, _] = asked.at(Offered(concurrency=2))
    assert warm == 3
    assert len(bodies) == 3 + 4 * 6
    assert (one.figures["completed"], other.repeat) == (6, 1)
    assert attainment([one, other], Slo()) == 1.0
    prompts = [tuple(body["prompt"]) for body in bodies]  # type: ignore[arg-type]
    assert len(set(prompts[:15])) == 15
    assert set(prompts[15:21]) == set(prompts[3:9])  # the same demand at another load
    assert again.figures["total_output_tokens"] == 12
    assert one.timeline == ()


def test_prompts_go_out_as_text_where_the_tokenizer_is_not_the_servers() -> None:
    bodies: list[dict[str, object]] = []

    async def play(caller: Caller) -> None:
        bodies.append(caller.body)
        await caller.head()
        await caller.token(finish="length")
        await caller.end(4, 2)

    with running(play) as url:
        study(url, decode=lambda ids: " ".join(map(str, ids)), repeats=1).at(Offered(concurrency=1))
    texts = [body["prompt"] for body in bodies if body]
    assert all(isinstance(text, str) and len(text.split()) == 4 for text in texts)


def test_a_server_that_answers_nothing_is_told_at_once() -> None:
    async def play(caller: Caller) -> None:
        await caller.head("404 Not Found", "application/json")
        await caller.raw(b'{"error": {"message": "no such model"}}')

    with running(play) as url, pytest.raises(StartupError, match="HTTP 404: no such model"):
        study(url).warm_up(2)


def test_what_the_server_says_of_itself() -> None:
    assert read_series(METRICS) == {"running": 3, "waiting": 3, "expert_hits": 70, "expert_uses": 100}
    assert read_series(METRICS.replace("smoe:", "vllm:")) == {"running": 3, "waiting": 3}
    assert read_series("# TYPE other gauge\nother 1\n") == {}
    assert read_series('data: {"choices": [{"text": "no metrics"}]}\n\n') == {}


def test_it_is_polled_until_the_end_and_not_without_that_page() -> None:
    polls: list[str] = []

    async def tells(caller: Caller) -> None:
        polls.append(caller.path)
        busy = len(polls) == 2
        await caller.head("503 Service Unavailable" if busy else "200 OK", kind="text/plain")
        await caller.raw(METRICS.encode())

    async def has_none(caller: Caller) -> None:
        polls.append(caller.path)
        await caller.head("404 Not Found")

    async def watch(play: Callable[[Caller], Awaitable[None]], until: Callable[[Timeline], bool]) -> Timeline:
        async with toy_server(play) as url:
            target = Target(base_url=url, model="toy")
            async with watched(target, HandClock(), 0.5) as timeline, asyncio.timeout(20):
                while not until(timeline):
                    await asyncio.sleep(0)
        return timeline

    timeline = asyncio.run(watch(tells, lambda t: len(t.samples) == 3))
    assert [sample["at_s"] for sample in timeline.samples[:3]] == [0.0, 1.0, 1.5]
    assert timeline.samples[0]["waiting"] == 3
    polls.clear()
    timeline = asyncio.run(watch(has_none, lambda _: len(polls) == 1))
    assert (timeline.samples, set(polls)) == ([], {"/metrics"})
