"""Text on the wire against the bytes of its tokens: characters in pieces, broken ones, and stop strings across both."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from tests.server.conftest import Live

Chunk = tuple[str, list[int]]


@pytest.fixture(scope="module")
def http(live: Live) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, headers={"authorization": f"Bearer {live.key}"}, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def text_of(live: Live) -> Callable[[Sequence[int]], str]:
    """By the tokenizer's own decoder, all tokens at once."""
    tokenizer = Tokenizer.from_file(str(live.folder / "tokenizer.json"))
    return lambda ids: str(tokenizer.decode(list(ids)))


class Asked:
    """One request, sampled with a seed so that it can be asked again."""

    def __init__(self, http: httpx.Client, model: str, seed: int, tokens: int = 48) -> None:
        self._http = http
        self._body = {
            "model": model,
            "prompt": "Once upon a time",
            "seed": seed,
            "temperature": 0.7,
            "max_tokens": tokens,
            "ignore_eos": True,
            "return_token_ids": True,
        }

    def whole(self, **more: Any) -> dict[str, Any]:
        answer = self._http.post("/v1/completions", json={**self._body, **more}).raise_for_status().json()
        choice: dict[str, Any] = answer["choices"][0]
        return choice

    def streamed(self, **more: Any) -> list[dict[str, Any]]:
        """The choices of all chunks, decoded event by event: each is UTF-8 by itself."""
        choices = []
        with self._http.stream("POST", "/v1/completions", json={**self._body, **more, "stream": True}) as response:
            events = b"".join(response.iter_raw()).split(b"\n\n")
        assert events[-2:] == [b"data: [DONE]", b""]
        for event in events[:-2]:
            choices += json.loads(event.removeprefix(b"data: ").decode("utf-8", "strict"))["choices"]
        return choices


def test_deltas_add_up_to_the_whole_text_and_each_is_that_of_its_tokens(
    http: httpx.Client, live: Live, text_of: Callable[[Sequence[int]], str]
) -> None:
    seen = ""
    for seed in range(4):
        asked = Asked(http, live.model, seed)
        whole, chunks = asked.whole(), asked.streamed()
        assert "".join(chunk["text"] for chunk in chunks).encode() == whole["text"].encode()
        ids = [token for chunk in chunks for token in chunk["token_ids"]]
        assert ids == whole["token_ids"]
        assert len(ids) == 48
        assert whole["text"] == text_of(ids)
        so_far: list[int] = []
        text = ""
        for chunk in chunks:
            so_far += chunk["token_ids"]
            text += chunk["text"]
            assert text == text_of(so_far)
        seen += whole["text"]
    assert sum(ord(char) > 127 and char != "�" for char in seen) > 8, "no characters in pieces: the test tests nothing"
    assert "�" in seen


def test_stop_strings_across_tokens_cut_at_the_character(
    http: httpx.Client, live: Live, text_of: Callable[[Sequence[int]], str]
) -> None:
    crossed = 0
    for seed in range(4):
        asked = Asked(http, live.model, seed)
        chunks = asked.streamed()
        text = "".join(chunk["text"] for chunk in chunks)
        in_pieces = [at for at, char in enumerate(text) if char > "\x7f" and char != "�" and at > 1]
        for at in in_pieces[:2]:
            stop = text[at : at + 2].rstrip("�")
            expected = text[: text.index(stop)]
            whole, pieces = asked.whole(stop=[stop]), asked.streamed(stop=[stop])
            assert whole["text"].encode() == expected.encode()
            assert "".join(piece["text"] for piece in pieces).encode() == expected.encode()
            assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", stop)
            assert (pieces[-1]["finish_reason"], pieces[-1]["stop_reason"]) == ("stop", stop)
            ids = [token for piece in pieces for token in piece["token_ids"]]
            assert ids == whole["token_ids"]
            assert stop in text_of(ids)
            assert stop not in text_of(ids[:-1])
            crossed += len(stop) > 1 or text_of(ids[-1:]) != stop
    assert crossed > 3, "no stop string came in two tokens: the test tests nothing"
