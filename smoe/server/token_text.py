"""Log probabilities in the shapes that OpenAI's two routes have."""

import asyncio
from collections.abc import Sequence
from typing import Any

from smoe.core.client import EngineClient
from smoe.core.request import TokenLogprob

_MOST_CACHED = 100_000


class TokenTexts:
    """The text of single tokens, each asked for once: bytes that are no character alone become U+FFFD."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    async def learn(self, client: EngineClient, logprobs: Sequence[TokenLogprob]) -> None:
        """So that `text` knows all tokens of these."""
        ids = {token for each in logprobs for token in (each.token_id, *(i for i, _ in each.top))}
        if unknown := [token for token in ids if token not in self._texts]:
            if len(self._texts) > _MOST_CACHED:
                self._texts.clear()
                unknown = list(ids)
            texts = await asyncio.to_thread(lambda: [client.decode_text([token]) or "" for token in unknown])
            self._texts.update(zip(unknown, texts, strict=True))

    def text(self, token_id: int) -> str:
        return self._texts[token_id]


def completion_logprobs(texts: TokenTexts, logprobs: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """Of /v1/completions; `offset` is the length in characters of the answer so far, which the tokens come after."""
    offsets = []
    for each in logprobs:
        offsets.append(offset)
        offset += len(texts.text(each.token_id))
    return {
        "tokens": [texts.text(each.token_id) for each in logprobs],
        "token_logprobs": [each.logprob for each in logprobs],
        "top_logprobs": [{texts.text(i): value for i, value in reversed(each.top)} for each in logprobs],
        "text_offset": offsets,
    }


def chat_logprobs(texts: TokenTexts, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Of /v1/chat/completions."""
    return {
        "content": [
            {
                **_entry(texts.text(each.token_id), each.logprob),
                "top_logprobs": [_entry(texts.text(i), value) for i, value in each.top],
            }
            for each in logprobs
        ],
        "refusal": None,
    }


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
