"""Chunks of a stream: text and token ids of each are of one another, whatever is held back."""

import asyncio
from typing import Any

import pytest

from smoe.core.step import SampledToken
from smoe.engine.tokenizer import Tokenizer, load_tokenizer
from smoe.models.loading import open_checkpoint
from smoe.server.app import make_app
from smoe.server.config import ServerConfig
from tests.server.asgi import Call
from tests.server.scripted import OfTokenizer, client_of
from tests.server.test_life import until

TEXTS = ["A naïve “quote”, 日本語 🙂 and more: wonders and a wonderful world", "ααα βββ 🙂🙂 wo wond wonder"]
STOPS: list[list[str]] = [[], ["wonderf"], ["語 🙂 and m", "zzz"], ["wonders an"], ["🙂🙂 wo", " wor"]]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    found = load_tokenizer(open_checkpoint("builtin").folder)
    assert found is not None
    return found


def choices(tokenizer: Tokenizer, text: str, *paths_and_bodies: tuple[str, dict[str, Any]]) -> list[Any]:
    """For each request, its answer's parts: what a model that says `text` answers."""
    ids = tokenizer.encode(text)

    def script(_: Any, index: int) -> SampledToken:
        return SampledToken(ids[index])

    async def body() -> list[Any]:
        executor = OfTokenizer(script, 5000)
        app = make_app(lambda: client_of(executor, tokenizer), "m", ServerConfig())
        async with app.router.lifespan_context(app):
            await until(lambda: app.state.engine.phase == "running")
            calls = [
                Call(app, {"model": "m", "max_tokens": len(ids), "return_token_ids": True, **body}, path)
                for path, body in paths_and_bodies
            ]
            await asyncio.gather(*(call.ended for call in calls))
            assert [call.status for call in calls] == [200] * len(calls), calls[0].chunks
            return [[e["choices"][0] for e in call.events] or call.json["choices"][0] for call in calls]

    return asyncio.run(body())


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("stop", STOPS)
def test_text_and_tokens_of_each_chunk_are_of_one_another(tokenizer: Tokenizer, text: str, stop: list[str]) -> None:
    body = {"prompt": [5, 6], "stop": stop or None}
    completion, chat = "/v1/completions", "/v1/chat/completions"
    messages = {"messages": [{"role": "user", "content": "x"}], "stop": body["stop"]}
    streamed, whole, talked = choices(
        tokenizer,
        text,
        (completion, {**body, "stream": True}),
        (completion, body),
        (chat, {**messages, "stream": True}),
    )
    assert "".join(chunk["text"] for chunk in streamed) == whole["text"]
    assert [token for chunk in streamed for token in chunk["token_ids"]] == whole["token_ids"]
    for chunk in streamed[:-1]:
        assert tokenizer.decode(chunk["token_ids"]) == chunk["text"]
    if streamed[-1]["finish_reason"] == "length":
        assert whole["text"] == text
        assert tokenizer.decode(streamed[-1]["token_ids"]) == streamed[-1]["text"]
    else:
        stopped = min((text.find(each) + len(each), each) for each in stop if each in text)[1]
        assert (streamed[-1]["finish_reason"], streamed[-1]["stop_reason"]) == ("stop", stopped)
        assert text.startswith(whole["text"] + stopped)
    assert len(streamed) > 3, "several chunks"
    assert "".join(chunk["delta"].get("content", "") for chunk in talked) == whole["text"]
    assert [chunk["token_ids"] for chunk in talked] == [chunk["token_ids"] for chunk in streamed]


def test_without_a_tokenizer_every_token_is_a_chunk() -> None:
    from tests.actors.fakes import FakeExecutor, expected_tokens

    async def body() -> list[Any]:
        app = make_app(lambda: client_of(FakeExecutor()), "m", ServerConfig())
        async with app.router.lifespan_context(app):
            await until(lambda: app.state.engine.phase == "running")
            call = Call(app, {"model": "m", "prompt": [1], "max_tokens": 5, "return_token_ids": True, "stream": True})
            await call.ended
            return call.events

    events = asyncio.run(body())
    assert [event["choices"][0]["token_ids"] for event in events] == [[token] for token in expected_tokens([1], 5)]
