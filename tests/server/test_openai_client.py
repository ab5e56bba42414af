"""The official client against a live server."""

import asyncio
from collections.abc import Iterable
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletionMessageParam

from tests.server.conftest import Live

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
PROMPT = "Once upon a time"
USAGE: Any = {"include_usage": True}
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def client(live: Live) -> Iterable[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key=live.key, max_retries=0) as opened:
        yield opened


def test_the_model_is_listed(client: openai.OpenAI, live: Live) -> None:
    assert [model.id for model in client.models.list()] == [live.model]
    assert client.models.retrieve(live.model).id == live.model


def test_completions_streamed_or_not(client: openai.OpenAI, live: Live) -> None:
    whole = client.completions.create(model=live.model, prompt=PROMPT, **GREEDY)
    chunks = list(
        client.completions.create(model=live.model, prompt=PROMPT, stream=True, stream_options=USAGE, **GREEDY)
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert len(chunks) > 5
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    assert (whole.usage.completion_tokens, whole.usage.total_tokens) == (24, 24 + whole.usage.prompt_tokens)
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_chat_streamed_or_not(client: openai.OpenAI, live: Live) -> None:
    whole = client.chat.completions.create(model=live.model, messages=MESSAGES, **GREEDY)
    chunks = list(
        client.chat.completions.create(
            model=live.model, messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert chunks[-1].usage == whole.usage


def test_an_answer_goes_back_as_it_came(client: openai.OpenAI, live: Live) -> None:
    first = client.chat.completions.create(model=live.model, messages=MESSAGES, **GREEDY).choices[0].message
    dialogue: list[Any] = [*MESSAGES, first, {"role": "user", "content": "More"}]
    plain = [*MESSAGES, {"role": "assistant", "content": first.content}, dialogue[-1]]
    ways = [client.chat.completions.create(model=live.model, messages=each, **GREEDY) for each in (dialogue, plain)]
    assert ways[0].choices == ways[1].choices


def test_log_probabilities(client: openai.OpenAI, live: Live) -> None:
    completion = client.completions.create(model=live.model, prompt=PROMPT, logprobs=3, **GREEDY).choices[0]
    assert completion.logprobs is not None
    tokens, values, tops = (
        completion.logprobs.tokens,
        completion.logprobs.token_logprobs,
        completion.logprobs.top_logprobs,
    )
    assert tokens is not None
    assert values is not None
    assert tops is not None
    assert len(tokens) == len(values) == len(tops) == 24
    assert all(value <= 0 and value == max(top.values()) for value, top in zip(values, tops, strict=True))
    chat = client.chat.completions.create(
        model=live.model, messages=MESSAGES, logprobs=True, top_logprobs=2, **GREEDY
    ).choices[0]
    assert chat.logprobs is not None
    assert chat.logprobs.content is not None
    assert len(chat.logprobs.content) == 24
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in chat.logprobs.content)
    assert all(entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob for entry in chat.logprobs.content)


def test_seeds_choose_and_n_counts(client: openai.OpenAI, live: Live) -> None:
    def texts(seed: int, n: int) -> list[str]:
        answer = client.completions.create(
            model=live.model, prompt=PROMPT, seed=seed, n=n, temperature=1.5, max_tokens=12
        )
        assert [choice.index for choice in answer.choices] == list(range(n))
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 12 * n
        return [choice.text for choice in answer.choices]

    three = texts(5, 3)
    assert len(set(three)) == 3
    assert texts(5, 3) == three
    assert texts(6, 1) == three[1:2]


def test_streams_of_several_answers_keep_them_apart(client: openai.OpenAI, live: Live) -> None:
    sampled: dict[str, Any] = {"seed": 5, "n": 3, "temperature": 1.5, "max_tokens": 12}
    whole = client.completions.create(model=live.model, prompt=[PROMPT, "def main"], **sampled)
    texts = [""] * 6
    for chunk in client.completions.create(model=live.model, prompt=[PROMPT, "def main"], stream=True, **sampled):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_token_ids_as_prompt_and_echo(client: openai.OpenAI, live: Live) -> None:
    ids = client.post("/../tokenize", cast_to=object, body={"prompt": PROMPT})
    assert isinstance(ids, dict)
    by_ids = client.completions.create(model=live.model, prompt=ids["tokens"], **GREEDY)
    by_text = client.completions.create(model=live.model, prompt=PROMPT, **GREEDY)
    assert by_ids.choices[0].text == by_text.choices[0].text
    echoed = client.completions.create(model=live.model, prompt=PROMPT, echo=True, **GREEDY)
    assert echoed.choices[0].text == PROMPT + by_text.choices[0].text


def test_the_asynchronous_client(live: Live) -> None:
    async def ask(client: openai.AsyncOpenAI, number: int) -> tuple[str, str]:
        prompt, params = f"{number} times", {"model": live.model, **GREEDY}
        whole: Completion = await client.completions.create(prompt=prompt, **params)
        stream = await client.completions.create(prompt=prompt, stream=True, **params)
        return whole.choices[0].text, "".join([chunk.choices[0].text async for chunk in stream])

    async def all_at_once() -> list[tuple[str, str]]:
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key=live.key, max_retries=0) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(6)))

    answers = asyncio.run(all_at_once())
    assert [whole for whole, _ in answers] == [streamed for _, streamed in answers]
    assert len({whole for whole, _ in answers}) > 1


BAD: list[tuple[type[openai.APIStatusError], str | None, dict[str, Any]]] = [
    (openai.NotFoundError, "model", {"model": "other"}),
    (openai.UnprocessableEntityError, "temperature", {"temperature": 3}),
    (openai.UnprocessableEntityError, "n", {"n": 0}),
    (openai.UnprocessableEntityError, "unknown_field", {"extra_body": {"unknown_field": 1}}),
    (openai.BadRequestError, "prompt", {"prompt": [10**6]}),
    (openai.BadRequestError, "prompt", {"prompt": "a b " * 3000}),
    (openai.RateLimitError, None, {"n": 17}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "param", "wrong"), BAD)
def test_errors_are_those_of_the_client(
    client: openai.OpenAI,
    live: Live,
    kind: type[openai.APIStatusError],
    param: str | None,
    wrong: dict[str, Any],
    stream: bool,
) -> None:
    with pytest.raises(kind) as caught:
        client.completions.create(**{"model": live.model, "prompt": PROMPT, "stream": stream, **wrong})
    assert caught.value.param == param
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"]


def test_a_wrong_key_is_an_authentication_error(live: Live) -> None:
    with (
        openai.OpenAI(base_url=f"{live.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()
