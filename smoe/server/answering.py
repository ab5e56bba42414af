"""From an engine's deltas to pieces of text, streamed as server-sent events or collected."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from smoe.core.request import Usage
from smoe.server.async_engine import Answers, AsyncEngine
from smoe.server.chunks import Chunks, event
from smoe.server.errors import ApiError
from smoe.server.pieces import Item, Pieces
from smoe.server.replies import Piece, Reply
from smoe.server.token_text import TokenTexts

T = TypeVar("T")


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
    pieces = Pieces(engine, texts, answers, job.items, job.prefixes, job.timeout_s)
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


async def _events(first: Piece, pieces: Pieces, job: Job) -> AsyncIterator[bytes]:
    counted, chunks = first.num_tokens, Chunks(job.reply)
    yield chunks.of(first)
    try:
        async for piece in pieces:
            counted += piece.num_tokens
            yield chunks.of(piece)
        if job.include_usage:
            yield event(job.reply.usage_chunk(Usage(job.prompt_tokens, counted)))
        yield b"data: [DONE]\n\n"
    except ApiError as error:
        yield event(error.body())


async def _collect(pieces: Pieces, job: Job) -> dict[str, Any]:
    whole: list[list[Piece]] = [[] for _ in job.items]
    async for piece in pieces:
        whole[piece.index].append(piece)
    joined = [Piece.joined(parts) for parts in whole]
    return job.reply.whole(joined, Usage(job.prompt_tokens, sum(piece.num_tokens for piece in joined)))


async def _disconnected(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
