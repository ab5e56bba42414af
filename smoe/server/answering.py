"""From an engine's deltas to pieces of text, streamed as server-sent events or collected."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from smoe.core.request import Delta, TokenLogprob, Usage
from smoe.core.sampling import SamplingParams
from smoe.server.async_engine import Answers, AsyncEngine
from smoe.server.errors import ApiError
from smoe.server.replies import Piece, Reply
from smoe.server.token_text import TokenTexts

Item = tuple[Sequence[int], SamplingParams]
_FAULTS = {"error": "server_error", "numeric_error": "numeric_error", "abort": "aborted"}


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


async def respond(engine: AsyncEngine, texts: TokenTexts, http: Request, job: Job) -> Response:
    """Raises RequestError or ApiError before anything is sent. A client that leaves ends its answers."""
    answers = await engine.submit(job.items)
    if job.stream:
        events = _events(engine, texts, answers, job)
        return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
    gone = asyncio.ensure_future(_disconnected(http))
    work = asyncio.ensure_future(_collect(engine, texts, answers, job))
    try:
        await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            return Response(status_code=499)  # to nobody
        return JSONResponse(work.result())
    finally:
        gone.cancel()
        work.cancel()
        await engine.abort(answers)


async def _events(engine: AsyncEngine, texts: TokenTexts, answers: Answers, job: Job) -> AsyncIterator[bytes]:
    counted = 0
    try:
        async for piece, tokens in _pieces(engine, texts, answers, job):
            counted += tokens
            if piece is not None:
                yield _event(job.reply.chunk(piece))
        if job.include_usage:
            yield _event(job.reply.usage_chunk(Usage(job.prompt_tokens, counted)))
        yield b"data: [DONE]\n\n"
    except ApiError as error:
        yield _event(error.body())
    finally:
        await asyncio.shield(engine.abort(answers))


async def _collect(engine: AsyncEngine, texts: TokenTexts, answers: Answers, job: Job) -> dict[str, Any]:
    whole = [Piece(index=i, text="") for i in range(len(job.items))]
    counted = 0
    async for piece, tokens in _pieces(engine, texts, answers, job):
        counted += tokens
        if piece is not None:
            so_far = whole[piece.index]
            if piece.logprobs is not None:
                so_far.logprobs = [*(so_far.logprobs or ()), *piece.logprobs]
            piece.text, piece.logprobs, piece.offset = so_far.text + piece.text, so_far.logprobs, 0
            whole[piece.index] = piece
    return job.reply.whole(whole, Usage(job.prompt_tokens, counted))


async def _pieces(
    engine: AsyncEngine, texts: TokenTexts, answers: Answers, job: Job
) -> AsyncIterator[tuple[Piece | None, int]]:
    """(piece, tokens new with it). Tokens whose text is still held back ride with the next piece that has some."""
    heads: list[str | None] = list(job.prefixes)
    offsets = [0] * len(job.items)
    held: list[list[TokenLogprob]] = [[] for _ in job.items]
    deltas = aiter(answers)
    deadline = asyncio.get_running_loop().time() + job.timeout_s
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                index, delta = await anext(deltas)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise ApiError(503, f"no end within {job.timeout_s:g} s", code="request_timeout", retry_after_s=1) from None
        _check(delta)
        held[index] += delta.logprobs
        ended = delta.finish_reason is not None
        if not (delta.text or ended):
            yield None, len(delta.token_ids)
            continue
        wanted, logprobs = job.items[index][1].logprobs is not None, held[index]
        if wanted and logprobs:
            await texts.learn(engine.client, logprobs)
        head, first = heads[index] or "", heads[index] is not None
        heads[index], held[index] = None, []
        yield (
            Piece(
                index=index,
                text=head + delta.text,
                logprobs=logprobs if wanted else None,
                finish_reason=delta.finish_reason,
                stop_reason=delta.stop_reason,
                offset=offsets[index] + len(head),
                first=first,
                substituted_slots=delta.substituted_slots,
                substituted_mass=delta.substituted_mass,
            ),
            len(delta.token_ids),
        )
        offsets[index] += len(head) + len(delta.text)


def _check(delta: Delta) -> None:
    reason = delta.finish_reason
    if reason in _FAULTS:
        retry, status = (1, 503) if reason == "abort" else (0, 500)
        raise ApiError(
            status, delta.error or f"the answer ended by {reason}", code=_FAULTS[reason], retry_after_s=retry
        )


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def _disconnected(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
