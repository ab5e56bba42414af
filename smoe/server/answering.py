"""From an engine's deltas to pieces of text, streamed as server-sent events or collected."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from smoe.core.request import Delta, Usage
from smoe.core.sampling import SamplingParams
from smoe.server.async_engine import Answers, AsyncEngine
from smoe.server.errors import ApiError
from smoe.server.health import phase_of
from smoe.server.replies import Piece, Reply
from smoe.server.token_text import TokenTexts

T = TypeVar("T")
Item = tuple[Sequence[int], SamplingParams]
_FAULTS = ("error", "numeric_error", "abort")
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # made once: it costs as much as a chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """`items` are all answers to be made, `prefixes` what echo puts before each; prompts count once for their n."""

    items: Sequence[Item]
    prefixes: Sequence[str]
    prompt_tokens: int
    reply: Reply
    stream: bool
    include_usage: bool
    timeout_s: float


class _Gone(Exception):
    """The client has left."""


async def respond(engine: AsyncEngine, texts: TokenTexts, http: Request, job: Job) -> Response:
    """Raises RequestError or ApiError before anything is sent: a stream begins with its first piece, so that what has
    no first piece has a status. A client that leaves ends its answers."""
    answers = await engine.submit(job.items)
    pieces = _pieces(engine, texts, answers, job)
    try:
        if job.stream:
            first = await _while_there(http, anext(pieces))
            return _EventStream(engine, answers, _events(first, pieces, job))
        return JSONResponse(await _while_there(http, _collect(pieces, job)))
    except _Gone:
        return Response(status_code=499)  # to nobody
    finally:
        if not answers.streaming:
            await asyncio.shield(engine.abort(answers))


class _EventStream(StreamingResponse):
    """Ends its answers however it ends itself."""

    def __init__(self, engine: AsyncEngine, answers: Answers, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._engine, self._answers = engine, answers
        answers.streaming = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await asyncio.shield(self._engine.abort(self._answers))


async def _while_there(http: Request, work: Awaitable[T]) -> T:
    """Raises _Gone when the client leaves first."""
    gone = asyncio.ensure_future(_disconnected(http))
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({gone, task}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _Gone
        return task.result()
    finally:
        gone.cancel()
        task.cancel()


async def _events(first: Piece, pieces: AsyncIterator[Piece], job: Job) -> AsyncIterator[bytes]:
    counted = first.num_tokens
    yield _event(job.reply.chunk(first))
    try:
        async for piece in pieces:
            counted += piece.num_tokens
            yield _event(job.reply.chunk(piece))
        if job.include_usage:
            yield _event(job.reply.usage_chunk(Usage(job.prompt_tokens, counted)))
        yield b"data: [DONE]\n\n"
    except ApiError as error:
        yield _event(error.body())


async def _collect(pieces: AsyncIterator[Piece], job: Job) -> dict[str, Any]:
    whole: list[list[Piece]] = [[] for _ in job.items]
    async for piece in pieces:
        whole[piece.index].append(piece)
    joined = [Piece.joined(parts) for parts in whole]
    return job.reply.whole(joined, Usage(job.prompt_tokens, sum(piece.num_tokens for piece in joined)))


async def _pieces(engine: AsyncEngine, texts: TokenTexts, answers: Answers, job: Job) -> AsyncIterator[Piece]:
    """Text and tokens of each are of one another: what is held back of a token holds back the rest of it too."""
    heads: list[str | None] = list(job.prefixes)
    offsets = [0] * len(job.items)
    held: list[list[Delta]] = [[] for _ in job.items]
    async for index, delta in _within(answers, job.timeout_s):
        _check(engine, delta)
        held[index].append(delta)
        if delta.held_back:
            continue
        parts, held[index] = held[index], []
        logprobs = None
        if job.items[index][1].logprobs is not None:
            logprobs = [entry for part in parts for entry in part.logprobs]
            if logprobs:
                await texts.learn(engine.client, logprobs)
        head, first = heads[index] or "", heads[index] is not None
        heads[index] = None
        text = head + "".join(part.text for part in parts)
        yield Piece(
            index=index,
            text=text,
            token_ids=[token for part in parts for token in part.token_ids],
            logprobs=logprobs,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            offset=offsets[index] + len(head),
            prompt_token_ids=job.items[index][0] if first else None,
            substituted_slots=delta.substituted_slots,
            substituted_mass=delta.substituted_mass,
        )
        offsets[index] += len(text)


async def _within(answers: Answers, timeout_s: float) -> AsyncIterator[tuple[int, Delta]]:
    """One timer for all of them."""
    timer = asyncio.get_running_loop().call_later(timeout_s, answers.expire)
    try:
        async for each in answers:
            yield each
    except TimeoutError:
        raise ApiError(503, f"no end within {timeout_s:g} s", code="request_timeout", retry_after_s=1) from None
    finally:
        timer.cancel()


def _check(engine: AsyncEngine, delta: Delta) -> None:
    """Raises what ended an answer before its time: 503 where another try may do better, 500 where it is its own."""
    reason = delta.finish_reason
    if reason not in _FAULTS:
        return
    why = delta.error or f"the answer ended by {reason}"
    if reason == "abort":
        raise ApiError(503, why, code="aborted", retry_after_s=1)
    if phase_of(engine)[0] == "failed":
        raise ApiError(503, why, code="engine_failed", retry_after_s=1)
    raise ApiError(500, why, code="numeric_error" if reason == "numeric_error" else "server_error")


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + _encode(body).encode() + b"\n\n"


async def _disconnected(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
