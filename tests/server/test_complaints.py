"""One line for a body that is wrong: field, value, limit; and what clients send by habit is taken or refused."""

from collections.abc import AsyncIterator
from typing import Any

import httpx

from smoe.server.config import ServerConfig
from tests.server.test_app import serve

TEXT: dict[str, Any] = {"model": "m", "prompt": [1], "max_tokens": 2, "temperature": 0}
CHAT: dict[str, Any] = {**TEXT, "messages": [{"role": "user", "content": "a"}]}
del CHAT["prompt"]
JSON = {"content-type": "application/json"}

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"frequency_penalty": 0.5}, "frequency_penalty", "frequency_penalty: 0.5 (only 0)"),
    ({"presence_penalty": -1}, "presence_penalty", "presence_penalty: -1 (only 0)"),
    ({"logit_bias": {"5": 1}}, "logit_bias", "logit_bias: {'5': 1} (at most 0 items)"),
    ({"suffix": "x"}, "suffix", "suffix: 'x' (only '')"),
    ({"tools": []}, "tools", "tools: no such field is taken here"),
    ({"stop": ""}, "stop", "stop: '' (at least 1 characters)"),
    ({"stop": ["a", 3]}, "stop.1", "stop.1: 3 (a valid string)"),
    ({"prompt": []}, "prompt", "prompt: [] (at least 1 items)"),
    ({"prompt": [-1]}, "prompt.0", "prompt.0: -1 (greater than or equal to 0)"),
    ({"prompt": 5}, "prompt", "prompt: 5 (a valid string or a valid list)"),
    ({"prompt": None}, "prompt", "prompt: required"),
    ({"n": 0}, "n", "n: 0 (greater than or equal to 1)"),
    ({"best_of": 3}, "best_of", "best_of: 3 (n, 1: more are not generated)"),
    ({"echo": True, "logprobs": 1}, "echo", "echo: True (not with logprobs: those of the prompt are not computed)"),
    (
        {"stream_options": {"include_usage": True}},
        "stream_options",
        "stream_options: {'include_usage': True} (none without stream)",
    ),
]
REFUSED_CHAT: list[tuple[dict[str, Any], str, str]] = [
    ({"top_logprobs": 2}, "top_logprobs", "top_logprobs: 2 (none without logprobs)"),
    (
        {"max_completion_tokens": 3},
        "max_completion_tokens",
        "max_completion_tokens: 3 (max_tokens, 2, where both are given)",
    ),
    ({"response_format": {"type": "json_object"}}, "response_format.type", "'json_object' (only 'text')"),
    ({"messages": []}, "messages", "messages: [] (at least 1 items)"),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0.content", "messages.0.content: required"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages.0.content.0.type",
        "messages.0.content.0.type: 'image_url' (only 'text')",
    ),
]


def test_what_is_refused_names_field_value_and_limit() -> None:
    async def body(client: httpx.AsyncClient, engine: Any) -> None:
        for path, fine, wrongs in (
            ("/v1/completions", TEXT, REFUSED),
            ("/v1/chat/completions", CHAT, REFUSED_CHAT),
        ):
            for wrong, param, message in wrongs:
                answer = await client.post(path, json={**fine, **wrong})
                error = answer.json()["error"]
                assert (answer.status_code, error["param"]) == (422, param), error
                assert message in error["message"]
        listed = await client.post("/v1/completions", json=[])
        assert listed.json()["error"]["message"] == "body: [] (a JSON object)"

    serve(body)


def test_null_is_as_if_left_out() -> None:
    async def body(client: httpx.AsyncClient, engine: Any) -> None:
        nulls = dict.fromkeys(("n", "stream", "echo", "stop", "min_p", "logit_bias", "tools", "stream_options"))
        for path, fine in (("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)):
            plain = (await client.post(path, json=fine)).json()["choices"]
            assert (await client.post(path, json={**fine, **nulls})).json()["choices"] == plain
        long = (await client.post("/v1/completions", json={**TEXT, "max_tokens": None, "ignore_eos": True})).json()
        assert long["usage"]["completion_tokens"] == 16

    serve(body)


def test_what_cannot_be_read_says_so() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(9):
            yield b" " * 1000

    async def body(client: httpx.AsyncClient, engine: Any) -> None:
        async def refused(content: Any) -> tuple[int, str]:
            answer = await client.post("/v1/completions", content=content, headers=JSON)
            return answer.status_code, answer.json()["error"]["code"]

        assert await refused(b'{"model": "\xff"}') == (400, "invalid_json")
        assert await refused(b"[" * 7000) == (400, "invalid_json")
        assert await refused(b"") == (422, "missing")
        assert await refused(pieces()) == (413, "body_too_large"), "its length is not said beforehand"

    serve(body, ServerConfig(max_body_bytes=8000))
