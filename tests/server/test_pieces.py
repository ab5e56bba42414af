"""Pieces of several answers from deltas that are given by hand, and their chunks."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smoe.core.request import Delta, Request
from smoe.core.sampling import SamplingParams
from smoe.server.async_engine import Answers
from smoe.server.chunks import Chunks, event
from smoe.server.errors import ApiError
from smoe.server.pieces import Pieces
from smoe.server.replies import ChatReply, CompletionReply, Piece
from smoe.server.token_text import TokenTexts

PROMPTS = [(5, 6), (7,)]


def delta(answer: int, text: str, *tokens: int, **more: Any) -> Delta:
    return Delta(request_id=str(answer), text=text, token_ids=tokens, **more)


def pieces_of(*come: Delta | None, heads: tuple[str, str] = ("", "")) -> tuple[list[Piece], ApiError | None]:
    """All pieces when these have come at once, and what ended them."""

    async def body() -> tuple[list[Piece], ApiError | None]:
        requests = [Request(request_id=str(i), prompt_token_ids=prompt) for i, prompt in enumerate(PROMPTS)]
        answers = Answers(requests)
        engine: Any = SimpleNamespace(phase="running", failure=None, health=lambda: None)
        items = [(prompt, SamplingParams()) for prompt in PROMPTS]
        pieces = Pieces(engine, TokenTexts(), answers, items, heads, timeout_s=60.0)
        for each in come:
            answers.put(each)
        found = []
        try:
            async for piece in pieces:
                found.append(piece)
        except ApiError as error:
            return found, error
        finally:
            answers.close()
        return found, None

    return asyncio.run(asyncio.wait_for(body(), 60))


def test_each_delta_is_a_piece_of_its_answer() -> None:
    found, error = pieces_of(
        delta(0, "a", 1),
        delta(1, "x", 9),
        delta(1, "y", 8, finish_reason="stop"),
        delta(0, "b", 2, finish_reason="length"),
    )
    assert error is None
    assert [(p.index, p.text, list(p.token_ids), p.offset) for p in found] == [
        (0, "a", [1], 0),
        (1, "x", [9], 0),
        (1, "y", [8], 1),
        (0, "b", [2], 1),
    ]
    assert [p.prompt_token_ids for p in found] == [(5, 6), (7,), None, None]
    assert [p.finish_reason for p in found] == [None, None, "stop", "length"]


def test_what_is_held_back_comes_with_what_ends_it() -> None:
    found, _ = pieces_of(
        delta(0, "", 1, held_back=True),
        delta(1, "x", 9, finish_reason="stop"),
        delta(0, "a", 2, held_back=True),
        delta(0, "bc", 3, finish_reason="stop"),
        heads=("echoed ", ""),
    )
    assert [(p.index, p.text, list(p.token_ids), p.offset) for p in found] == [
        (1, "x", [9], 0),
        (0, "echoed abc", [1, 2, 3], 7),
    ]


def test_a_fault_is_told_after_what_came_before_it() -> None:
    found, error = pieces_of(
        delta(0, "a", 1), delta(0, "", finish_reason="numeric_error", error="NaN"), delta(1, "x", 9)
    )
    assert [p.text for p in found] == ["a"]
    assert error is not None
    assert (error.status, error.code) == (500, "numeric_error")


@pytest.mark.parametrize("late", [False, True])
def test_time_that_is_over_after_the_end_is_no_matter(late: bool) -> None:
    come = [delta(0, "a", 1, finish_reason="stop"), delta(1, "x", 9, finish_reason=None if late else "stop"), None]
    found, error = pieces_of(*come)
    assert [p.text for p in found] == ["a", "x"]
    assert (error is not None and error.code == "request_timeout") == late


def replies(show_ids: bool) -> list[CompletionReply | ChatReply]:
    texts = TokenTexts()
    return [kind('a "name" text', False, texts, show_ids) for kind in (CompletionReply, ChatReply)]


any_pieces = st.builds(
    Piece,
    index=st.integers(0, 2),
    text=st.text(max_size=8),
    token_ids=st.lists(st.integers(0, 9), max_size=3),
    finish_reason=st.sampled_from([None, None, "stop"]),
    prompt_token_ids=st.sampled_from([None, None, (1, 2)]),
)


@given(st.lists(any_pieces, max_size=8), st.booleans())
def test_a_plain_chunk_is_written_as_any_other(pieces: list[Piece], show_ids: bool) -> None:
    for reply in replies(show_ids):
        chunks = Chunks(reply)
        for piece in pieces:
            assert json.loads(chunks.of(piece)[6:]) == reply.chunk(piece)
            assert chunks.of(piece) == event(reply.chunk(piece))
