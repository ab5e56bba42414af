"""A client of any OpenAI-compatible server that keeps the time of every chunk.

    target = Target(base_url="http://127.0.0.1:8000", model="builtin", extra={"ignore_eos": True})
    orders = [Order(request_id="0", at_s=0.0, prompt=(1, 2, 3), prompt_tokens=3, max_tokens=16), ...]
    load = asyncio.run(open_loop(target, orders))            # each sent when it is due, however busy the server
    load = asyncio.run(closed_loop(target, orders, 16))      # 16 in flight, a further one as soon as one has ended
    summarise(load.records, load.duration_s, slo)            # smoe.metrics.slo

Failures (refusals, lost connections, broken streams, empty answers, timeouts) are records with an `error`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, Self

import aiohttp

from smoe.bench.slo.answer import BrokenAnswer, StreamedAnswer, message_of
from smoe.bench.slo.clock import Clock, MonotonicClock
from smoe.bench.slo.sse import EventSplitter
from smoe.core.errors import StartupError
from smoe.metrics.latency import tpot_s
from smoe.metrics.serving import RequestRecord

Endpoint = Literal["completions", "chat"]
_PATHS: dict[Endpoint, str] = {"completions": "completions", "chat": "chat/completions"}
_REUSE_S = 2.0
"""Idle connections are closed after it, well before servers close them (uvicorn: 5 s), so that none dies in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`base_url` with or without /v1. `extra` are further fields of every body, as `{"ignore_eos": True}`."""

    base_url: str
    model: str
    api_key: str | None = None
    endpoint: Endpoint = "completions"
    timeout_s: float = 600.0
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def root(self) -> str:
        return self.base_url.rstrip("/").removesuffix("/v1")

    @property
    def url(self) -> str:
        return f"{self.root}/v1/{_PATHS[self.endpoint]}"

    @property
    def headers(self) -> dict[str, str]:
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {"Content-Type": "application/json", "Accept-Encoding": "identity", **key}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A request to be sent `at_s` seconds after the beginning. `prompt` is text, or token ids (not for chat);
    `prompt_tokens` are those expected, until the server says how many there were."""

    request_id: str
    at_s: float
    prompt: str | tuple[int, ...]
    prompt_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What became of all orders, in their order. `begun_s` is when the first was due, on the records' clock."""

    records: tuple[RequestRecord, ...]
    begun_s: float
    ended_s: float

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.begun_s

    @property
    def median_tpot_s(self) -> float:
        """One-token answers count as 0."""
        return median([tpot_s(record.times) or 0.0 for record in self.records])

    def whole(self, name: str) -> Self:
        """Itself. Raises StartupError where a request failed, in `name`'s name."""
        if failed := [record.error for record in self.records if record.failed]:
            raise StartupError(f"{name}: {len(failed)} of {len(self.records)} requests failed: {failed[0]}")
        return self


def body_of(target: Target, order: Order) -> bytes:
    body: dict[str, object] = {
        "model": target.model,
        "max_tokens": order.max_tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **target.extra,
    }
    if target.endpoint == "chat":
        if not isinstance(order.prompt, str):
            raise ValueError("a chat message is text, not token ids")
        body["messages"] = [{"role": "user", "content": order.prompt}]
    else:
        body["prompt"] = order.prompt
    return json.dumps(body, ensure_ascii=False).encode()


async def open_loop(target: Target, orders: Sequence[Order], clock: Clock | None = None) -> Load:
    """Every order goes out at its time, in a task and on a connection of its own: no answer holds back a request.
    How late this process was with sending is in the records."""
    clock = clock or MonotonicClock()
    due = sorted(((order, body_of(target, order)) for order in orders), key=lambda pair: pair[0].at_s)
    tasks: dict[str, asyncio.Task[RequestRecord]] = {}
    async with _session(target) as session:
        begun = clock.now_s()
        for order, body in due:
            await clock.sleep_until(begun + order.at_s)
            work = _one(session, target, order, body, begun + order.at_s, clock)
            tasks[order.request_id] = asyncio.create_task(work)
        await asyncio.gather(*tasks.values())
        records = tuple(tasks[order.request_id].result() for order in orders)
    return Load(records=records, begun_s=begun, ended_s=clock.now_s())


async def closed_loop(target: Target, orders: Sequence[Order], concurrency: int, clock: Clock | None = None) -> Load:
    """`concurrency` orders in flight at a time, until all are answered; their `at_s` do not count."""
    clock = clock or MonotonicClock()
    left = iter([(order, body_of(target, order)) for order in orders])
    records: dict[str, RequestRecord] = {}

    async def worker(session: aiohttp.ClientSession) -> None:
        for order, body in left:
            records[order.request_id] = await _one(session, target, order, body, clock.now_s(), clock)

    async with _session(target) as session:
        begun = clock.now_s()
        await asyncio.gather(*(worker(session) for _ in range(concurrency)))
        ended = clock.now_s()
    return Load(records=tuple(records[order.request_id] for order in orders), begun_s=begun, ended_s=ended)


@asynccontextmanager
async def _session(target: Target) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_REUSE_S)
    timeout = aiohttp.ClientTimeout(total=target.timeout_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=target.headers) as session:
        yield session


async def _one(
    session: aiohttp.ClientSession, target: Target, order: Order, body: bytes, due_s: float, clock: Clock
) -> RequestRecord:
    answer, status, error = StreamedAnswer(), None, None
    sent = clock.now_s()
    try:
        async with session.post(target.url, data=body) as response:
            status = response.status
            if status != 200:
                raise BrokenAnswer(f"HTTP {status}: {_reason(await response.read())}")
            events = EventSplitter()
            async for piece in response.content.iter_any():
                now = clock.now_s()
                for data in events.feed(piece):
                    answer.take(data, now)
            answer.check()
    except BrokenAnswer as broken:
        error = str(broken)
    except TimeoutError:
        error = f"no end within {target.timeout_s:g} s"
    except (aiohttp.ClientError, OSError) as lost:
        error = f"{type(lost).__name__}: {lost}"
    return RequestRecord(
        request_id=order.request_id,
        scheduled_s=due_s,
        sent_s=sent,
        prompt_tokens=order.prompt_tokens if answer.prompt_tokens is None else answer.prompt_tokens,
        output_tokens=answer.output_tokens,
        chunk_s=tuple(answer.chunk_s),
        chunk_tokens=tuple(answer.chunk_tokens),
        error=None if error is None else " ".join(error.split())[:300],
        status=status,
    )


def _reason(body: bytes) -> str:
    text = body.decode(errors="replace")
    try:
        return message_of(json.loads(text)) or text
    except ValueError:
        return text
