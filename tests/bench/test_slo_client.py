"""The load client against a server whose every byte and moment is known."""

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest

from smoe.bench.slo.client import Load, Order, Target, closed_loop, open_loop
from smoe.bench.slo.sse import EventSplitter
from smoe.core.errors import StartupError
from smoe.metrics.latency import e2e_s, itl_s, ttft_s
from smoe.metrics.serving import RequestRecord
from smoe.metrics.slo import Slo, summarise
from tests.bench.toy_server import Caller, HandClock, toy_server

Play = Callable[[Caller], Awaitable[None]]


def order(name: str = "a", at_s: float = 0.0, prompt: str | tuple[int, ...] = (1, 2, 3)) -> Order:
    return Order(request_id=name, at_s=at_s, prompt=prompt, prompt_tokens=3, max_tokens=4)


def loaded(play: Play, *orders: Order, clock: HandClock | None = None, **target: object) -> Load:
    async def run() -> Load:
        async with toy_server(play) as url:
            aim = Target(base_url=url, model="toy", **target)  # type: ignore[arg-type]
            return await asyncio.wait_for(open_loop(aim, orders or [order()], clock), 20)

    return asyncio.run(run())


def answered(play: Play, **target: object) -> RequestRecord:
    [record] = loaded(play, **target).records
    return record


def test_times_are_those_at_which_the_server_sent() -> None:
    clock = HandClock()

    async def play(caller: Caller) -> None:
        await caller.head()
        for at, text in ((100.5, "a"), (100.75, "b"), (102.0, "c")):
            clock.turn(at)
            await caller.token(text, "length" if text == "c" else None)
            await clock.read()
        clock.turn(103.0)
        await caller.end(7, 5)

    load = loaded(play, clock=clock)
    [record] = load.records
    assert record.chunk_s == (100.5, 100.75, 102.0)
    assert (record.scheduled_s, record.sent_s, load.begun_s, load.ended_s) == (100.0, 100.0, 100.0, 103.0)
    assert (record.prompt_tokens, record.output_tokens, record.chunk_tokens) == (7, 5, (1, 1, 1))
    assert (record.error, record.status) == (None, 200)
    assert (ttft_s(record.times), itl_s(record.times), e2e_s(record.times)) == (0.5, [0.25, 1.25], 2.0)


def test_no_answer_holds_back_a_request() -> None:
    """The server answers none before it has all: a client that waited for an answer would wait for ever."""
    have, all_here = [], asyncio.Event()

    async def play(caller: Caller) -> None:
        have.append(caller)
        if len(have) == 120:
            all_here.set()
        await all_here.wait()
        await caller.head()
        await caller.token(finish="length")
        await caller.end(3, 1)

    clock = HandClock()
    load = loaded(play, *(order(str(i), at_s=i / 100) for i in range(120)), clock=clock)
    assert [record.request_id for record in load.records] == [str(i) for i in range(120)]
    assert not any(record.failed for record in load.records)
    assert [record.scheduled_s for record in load.records] == pytest.approx([100 + i / 100 for i in range(120)])
    assert all(record.late_s >= 0 for record in load.records)


def test_a_client_that_is_late_says_so() -> None:
    class Slow(HandClock):
        async def sleep_until(self, at_s: float) -> None:
            self.time_s = max(self.time_s, at_s) + 0.25

    async def play(caller: Caller) -> None:
        await caller.head()
        await caller.token(finish="stop")
        await caller.end(3, 1)

    late = [record.late_s for record in loaded(play, order("a"), order("b", at_s=0.1), clock=Slow()).records]
    assert late[0] >= 0.25
    assert late[1] >= 0.4


def test_orders_go_out_by_their_times_and_come_back_in_their_order() -> None:
    seen: list[int] = []

    async def play(caller: Caller) -> None:
        seen.append(caller.body["prompt"][0])
        await caller.head()
        await caller.token(finish="length")
        await caller.end(1, 1)

    async def run() -> Load:
        async with toy_server(play) as url:
            orders = [order(str(i), prompt=(i,)) for i in (2, 0, 1)]
            return await closed_loop(Target(base_url=url, model="toy"), orders, 1)

    load = asyncio.run(run())
    assert seen == [2, 0, 1]
    assert [record.request_id for record in load.records] == ["2", "0", "1"]


def test_closed_loop_keeps_as_many_in_flight_and_no_more() -> None:
    state = {"now": 0, "most": 0}
    full = asyncio.Event()

    async def play(caller: Caller) -> None:
        state["now"] += 1
        state["most"] = max(state["most"], state["now"])
        if state["now"] == 4:
            full.set()
        await full.wait()
        await caller.head()
        await caller.token(finish="length")
        state["now"] -= 1
        await caller.end(1, 1)

    async def run() -> Load:
        async with toy_server(play) as url:
            orders = [order(str(i)) for i in range(12)]
            return await asyncio.wait_for(closed_loop(Target(base_url=url, model="toy"), orders, 4), 20)

    assert len(asyncio.run(run()).records) == 12
    assert state["most"] == 4


async def _drops(caller: Caller) -> None:
    await caller.head(extra="Transfer-Encoding: chunked\r\n")
    await caller.raw(b'40\r\ndata: {"choices": [{"text":')


async def _hangs_up(caller: Caller) -> None:
    """Without a word."""


async def _refuses(caller: Caller) -> None:
    await caller.head("429 Too Many Requests", "application/json", "Retry-After: 1\r\n")
    await caller.raw(b'{"error": {"message": "256 answers\\nin flight", "code": "busy"}}')


async def _says_html(caller: Caller) -> None:
    await caller.head("502 Bad Gateway", "text/html")
    await caller.raw(b"<html>no upstream</html>")


async def _is_empty(caller: Caller) -> None:
    await caller.head()
    await caller.token("", "stop")
    await caller.end(3, 0)


async def _ends_at_once(caller: Caller) -> None:
    await caller.head()


async def _ends_within_an_event(caller: Caller) -> None:
    await caller.head()
    await caller.token()
    await caller.raw(b'data: {"choices": [{"text": "b", "finish_reason": "stop"}]}\n')


async def _sends_no_json(caller: Caller) -> None:
    await caller.head()
    await caller.token()
    await caller.event('{"choices": [{"te')


async def _fails_within(caller: Caller) -> None:
    await caller.head()
    await caller.token()
    await caller.event({"error": {"message": "the engine is gone"}})


async def _aborts(caller: Caller) -> None:
    await caller.head()
    await caller.token(finish="abort")
    await caller.end(3, 1)


FAILURES: list[tuple[Play, str, int | None]] = [
    (_drops, "^ClientPayloadError: .*not completed", 200),
    (_hangs_up, "^ServerDisconnectedError", None),
    (_refuses, "^HTTP 429: 256 answers in flight$", 429),
    (_says_html, "^HTTP 502: <html>no upstream</html>$", 502),
    (_is_empty, "^an empty answer$", 200),
    (_ends_at_once, "^the stream ended early, after 0 chunks$", 200),
    (_ends_within_an_event, "^the stream ended early, after 1 chunks$", 200),
    (_sends_no_json, "^an event that is no JSON", 200),
    (_fails_within, "^the engine is gone$", 200),
    (_aborts, "^the answer ended by 'abort'$", 200),
]


@pytest.mark.parametrize(("play", "reason", "status"), FAILURES)
def test_every_failure_is_one_line_and_no_latency(play: Play, reason: str, status: int | None) -> None:
    record = answered(play)
    assert record.failed
    assert record.status == status
    assert record.error is not None
    assert "\n" not in record.error
    assert re.search(reason, record.error)
    figures = summarise([record], 1.0, Slo())
    assert (figures["completed"], figures["failed"], figures["mean_ttft_ms"]) == (0, 1, None)


def test_nobody_listens() -> None:
    load = asyncio.run(open_loop(Target(base_url="http://127.0.0.1:9", model="toy"), [order()]))
    [record] = load.records
    assert record.status is None
    assert "Connect" in (record.error or "")
    with pytest.raises(StartupError, match=re.escape(f"toy: 1 of 1 requests failed: {record.error}")):
        load.whole("toy")


def test_a_timeout_is_a_failure() -> None:
    async def play(caller: Caller) -> None:
        await caller.head()
        await caller.token()
        await asyncio.Event().wait()

    async def run() -> Load:
        async with toy_server(play) as url:
            return await open_loop(Target(base_url=url, model="toy", timeout_s=0.05), [order()])

    [record] = asyncio.run(run()).records
    assert record.error == "no end within 0.05 s"


def test_a_token_without_text_has_the_time_of_the_end() -> None:
    clock = HandClock()

    async def play(caller: Caller) -> None:
        await caller.head()
        clock.turn(101.0)
        await caller.token("", "stop")
        await clock.read()
        clock.turn(102.0)
        await caller.end(3, 1)

    [record] = loaded(play, clock=clock).records
    assert (record.chunk_s, record.output_tokens, record.failed) == ((101.0,), 1, False)


def test_tokens_of_a_chunk_are_counted_where_the_server_says() -> None:
    async def play(caller: Caller) -> None:
        await caller.head()
        await caller.event({"choices": [{"text": "ab", "token_ids": [1, 2]}]})
        await caller.event({"choices": [{"text": "", "token_ids": [3]}]})
        await caller.event({"choices": [{"text": "cde"}], "usage": {"completion_tokens": 6}})
        await caller.token("f", "length")
        await caller.end(3, 7)

    record = answered(play)
    assert (record.chunk_tokens, record.output_tokens) == ((2, 1, 3, 1), 7)


def test_events_are_the_same_however_the_network_cuts_them() -> None:
    async def play(caller: Caller) -> None:
        await caller.head()
        text = 'data: {"choices": [{"text": "é"}]}\r\n\r\n: ping\n\nevent: x\ndata: [DONE]\n\n'
        for i in range(len(text.encode())):
            await caller.raw(text.encode()[i : i + 1])
            await asyncio.sleep(0)

    record = answered(play)
    assert (record.error, record.output_tokens) == (None, 1)


def test_an_event_is_whole_with_its_blank_line() -> None:
    events = EventSplitter()
    assert list(events.feed(b"data: a\ndata: b\nid: 1\n: ping\n")) == []
    assert list(events.feed(b"\r\n\n\ndata:c\n\ndata: d")) == [b"a\nb", b"c"]


def test_what_is_asked_for() -> None:
    seen: list[Caller] = []

    async def play(caller: Caller) -> None:
        seen.append(caller)
        await caller.head()
        await caller.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        await caller.event({"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]})
        await caller.end(3, 1)

    load = loaded(play, order(prompt="hello"), endpoint="chat", api_key="k", extra={"ignore_eos": True})
    [record] = load.records
    [caller] = seen
    assert caller.headers["authorization"] == "Bearer k"
    assert caller.body == {
        "model": "toy",
        "max_tokens": 4,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "hello"}],
    }
    assert (len(record.chunk_s), record.error) == (1, None)  # the role alone is no token
    with pytest.raises(ValueError, match="a chat message is text"):
        loaded(play, order(), endpoint="chat")


def test_base_url_with_or_without_version() -> None:
    for base in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"):
        assert Target(base_url=base, model="m").url == "http://h:1/v1/completions"
