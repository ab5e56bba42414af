"""OpenAI's routes over a real engine in this process, called without sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
import pytest

from smoe.core.config import EngineConfig
from smoe.llm import LLM, open_client
from smoe.server.app import make_app
from smoe.server.config import ServerConfig

Answer = TypeVar("Answer")
GREEDY = {"model": "m", "temperature": 0, "max_tokens": 12}


@asynccontextmanager
async def served(config: ServerConfig | None = None) -> AsyncIterator[tuple[httpx.AsyncClient, Any]]:
    app = make_app(lambda: open_client(EngineConfig(threads=1), distributed=False), "m", config or ServerConfig())
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            while (await client.get("/health")).status_code != 200:
                await asyncio.sleep(0.01)
            yield client, app.state.engine


def serve(body: Callable[[httpx.AsyncClient, Any], Awaitable[Answer]], config: ServerConfig | None = None) -> Answer:
    async def run() -> Answer:
        async with served(config) as (client, engine):
            return await body(client, engine)

    return asyncio.run(run())


async def chunks(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await client.post(path, json={**body, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def test_completions_are_the_library_s_streamed_or_not() -> None:
    prompts = ["Once upon a time", "def main():"]
    with LLM("builtin", threads=1) as llm:
        from smoe import SamplingParams

        expected = [each.text for each in llm.generate(prompts, SamplingParams(max_tokens=12))]

    async def body(client: httpx.AsyncClient, engine: Any) -> None:
        whole = (await client.post("/v1/completions", json={**GREEDY, "prompt": prompts})).json()
        assert [choice["text"] for choice in whole["choices"]] == expected
        assert [choice["index"] for choice in whole["choices"]] == [0, 1]
        assert whole["usage"]["completion_tokens"] == 24
        options = {"stream_options": {"include_usage": True}}
        pieces = await chunks(client, "/v1/completions", {**GREEDY, "prompt": prompts, **options})
        assert pieces.pop()["usage"] == whole["usage"]
        texts = ["", ""]
        for piece in pieces:
            texts[piece["choices"][0]["index"]] += piece["choices"][0]["text"]
        assert texts == expected
        assert engine.num_in_flight == 0

    serve(body)


def test_chat_logprobs_echo_n_and_stop() -> None:
    async def body(client: httpx.AsyncClient, engine: Any) -> None:
        messages = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
        chat = {**GREEDY, "messages": messages, "logprobs": True, "top_logprobs": 2, "n": 2, "seed": 3}
        whole = (await client.post("/v1/chat/completions", json=chat)).json()
        assert len(whole["choices"]) == 2
        for choice in whole["choices"]:
            entries = choice["logprobs"]["content"]
            assert "".join(entry["token"] for entry in entries).startswith(choice["message"]["content"][:3])
            assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
        pieces = await chunks(client, "/v1/chat/completions", {**GREEDY, "messages": messages})
        assert pieces[0]["choices"][0]["delta"]["role"] == "assistant"
        assert pieces[-1]["choices"][0]["finish_reason"] == "length"
        text = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
        assert text == whole["choices"][0]["message"]["content"]
        echoed = (await client.post("/v1/completions", json={**GREEDY, "prompt": "Once upon", "echo": True})).json()
        assert echoed["choices"][0]["text"].startswith("Once upon")
        stopped = (await client.post("/v1/completions", json={**GREEDY, "prompt": "Once upon", "stop": [" "]})).json()
        assert " " not in stopped["choices"][0]["text"]
        assert (stopped["choices"][0]["finish_reason"], stopped["choices"][0]["stop_reason"]) == ("stop", " ")

    serve(body)


BAD: list[tuple[int, dict[str, Any]]] = [
    (404, {**GREEDY, "model": "other", "prompt": "a"}),
    (422, {**GREEDY, "prompt": "a", "unknown": 1}),
    (422, {**GREEDY, "prompt": "a", "stream_options": {"include_usage": True}}),
    (422, {**GREEDY, "prompt": "a", "n": 0}),
    (422, {**GREEDY, "prompt": "a", "best_of": 2}),
    (422, {**GREEDY, "prompt": "a", "logit_bias": {"1": 2}}),
    (422, {**GREEDY, "prompt": []}),
    (400, {**GREEDY, "prompt": [1_000_000]}),
    (400, {**GREEDY, "prompt": "a" * 6000}),
]


def test_bad_requests_harm_nothing_and_say_what_is_wrong() -> None:
    async def body(client: httpx.AsyncClient, engine: Any) -> None:
        for status, request in BAD:
            answer = await client.post("/v1/completions", json=request)
            assert answer.status_code == status, (request, answer.text)
            error = answer.json()["error"]
            assert error["message"]
            assert set(error) == {"message", "type", "param", "code"}
        headers = {"content-type": "application/json"}
        assert (await client.post("/v1/completions", content=b"{", headers=headers)).status_code == 400
        assert (await client.post("/v1/completions", content=b"{}")).status_code == 415
        assert (await client.post("/v1/completions", content=b" " * 9000, headers=headers)).status_code == 413
        assert (await client.get("/v1/completions")).status_code == 405
        assert (await client.get("/nowhere")).json()["error"]["code"] == "not_found"
        fine = await client.post("/v1/completions", json={**GREEDY, "prompt": "Once"})
        assert fine.json()["usage"]["completion_tokens"] == 12
        assert engine.num_in_flight == 0

    serve(body, ServerConfig(max_body_bytes=8000))


def test_keys_queue_and_time_have_limits() -> None:
    config = ServerConfig(api_key="secret", max_queue=2, request_timeout_s=0.05)

    async def body(client: httpx.AsyncClient, engine: Any) -> None:
        assert (await client.get("/v1/models")).status_code == 401
        client.headers["authorization"] = "Bearer wrong"
        assert (await client.get("/v1/models")).json()["error"]["code"] == "invalid_api_key"
        client.headers["authorization"] = "Bearer secret"
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "m"
        many = await client.post("/v1/completions", json={**GREEDY, "prompt": "a", "n": 3})
        assert (many.status_code, many.headers["retry-after"]) == (429, "1")
        long = {**GREEDY, "prompt": "a", "max_tokens": 900, "ignore_eos": True}
        late = await client.post("/v1/completions", json=long)
        assert late.status_code == 503
        assert late.json()["error"]["code"] == "request_timeout"
        assert engine.num_in_flight == 0

    serve(body, config)


def test_tokens_there_and_back() -> None:
    async def body(client: httpx.AsyncClient, engine: Any) -> None:
        found = (await client.post("/tokenize", json={"prompt": "Hello é"})).json()
        assert found["count"] == len(found["tokens"])
        assert (await client.post("/detokenize", json={"tokens": found["tokens"]})).json() == {"prompt": "Hello é"}
        assert (await client.post("/detokenize", json={"tokens": [10**7]})).status_code == 400

    serve(body)


def test_a_model_that_does_not_load_is_said_and_not_served() -> None:
    async def run() -> tuple[int, Any, int]:
        config = EngineConfig(model="/nowhere/at/all")
        app = make_app(lambda: open_client(config, distributed=False), "m", ServerConfig())
        ended = asyncio.Event()
        app.state.engine.on_phase = ended.set
        async with app.router.lifespan_context(app):
            await asyncio.wait_for(ended.wait(), 30)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
                health = await client.get("/health")
                refused = await client.post("/v1/completions", json={**GREEDY, "prompt": "a"})
                return health.status_code, health.json(), refused.status_code

    status, said, refused = asyncio.run(run())
    assert (status, refused) == (503, 503)
    assert said["status"] == "failed"
    assert "/nowhere/at/all" in said["error"]


def test_leaving_ends_the_answers_of_whoever_left() -> None:
    async def body(client: httpx.AsyncClient, engine: Any) -> int:
        long = {**GREEDY, "prompt": "a", "max_tokens": 1000, "ignore_eos": True}
        task = asyncio.ensure_future(client.post("/v1/completions", json=long))
        while engine.num_in_flight == 0:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while engine.num_in_flight:
            await asyncio.sleep(0.001)
        done = await client.post("/v1/completions", json={**GREEDY, "prompt": "a"})
        return int(done.json()["usage"]["completion_tokens"])

    assert serve(body) == 12
