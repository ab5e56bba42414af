"""One streamed answer of an OpenAI-compatible server: which tokens came when, and whether it is whole."""

import json
from typing import Any

_GOOD_ENDS = ("stop", "length", "eos", "eos_token", "tool_calls", "function_call")


class BrokenAnswer(Exception):
    """Why there is no whole answer, in one line."""


class StreamedAnswer:
    """`take` an event's data with its time of arrival; `check` at the end. Both raise BrokenAnswer.

    A chunk counts when it brings text or token ids. It brings as many tokens as the server says (token ids, or a
    usage that goes up from chunk to chunk), else one. The usage at the end decides how many there were in all.
    """

    def __init__(self) -> None:
        self.chunk_s: list[float] = []
        self.chunk_tokens: list[int] = []
        self.prompt_tokens: int | None = None
        self._counted = 0  # in the chunks, without adding them up again for each
        self._completion_tokens: int | None = None
        self._end_s: float | None = None
        self._done = False

    @property
    def output_tokens(self) -> int:
        return self._counted if self._completion_tokens is None else self._completion_tokens

    def take(self, data: bytes, now_s: float) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        try:
            body = json.loads(data)
        except ValueError:
            raise BrokenAnswer(f"an event that is no JSON: {data[:60]!r}") from None
        if not isinstance(body, dict):
            raise BrokenAnswer(f"an event that is no JSON object: {data[:60]!r}")
        if body.get("error"):
            raise BrokenAnswer(message_of(body) or "an error event")
        before = self.output_tokens
        self._take_usage(body.get("usage"))
        for choice in body.get("choices") or ():
            self._take_choice(choice, self._completion_tokens, before, now_s)

    def check(self) -> None:
        """A whole answer has its [DONE], or at least a reason for its end."""
        if not self._done and self._end_s is None:
            raise BrokenAnswer(f"the stream ended early, after {len(self.chunk_s)} chunks")
        if not self.chunk_s and self.output_tokens and self._end_s is not None:
            # All tokens were without text, as the end of a sequence is: they came with the last chunk.
            self.chunk_s, self.chunk_tokens = [self._end_s], [self.output_tokens]
        if not self.chunk_s:
            raise BrokenAnswer("an empty answer")

    def _take_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self.prompt_tokens = usage.get("prompt_tokens", self.prompt_tokens)
            self._completion_tokens = usage.get("completion_tokens", self._completion_tokens)

    def _take_choice(self, choice: dict[str, Any], counted: int | None, before: int, now_s: float) -> None:
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
        ids = choice.get("token_ids")
        if text or ids:
            self.chunk_s.append(now_s)
            self.chunk_tokens.append(len(ids) if ids else max(1, (counted or 0) - before))
            self._counted += self.chunk_tokens[-1]
        reason = choice.get("finish_reason")
        if reason is not None:
            self._end_s = now_s
            if reason not in _GOOD_ENDS:
                raise BrokenAnswer(f"the answer ended by {reason!r}")


def message_of(body: Any) -> str | None:
    """What an error body says, in OpenAI's form or others'; None when it has none of them."""
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    if error is None and isinstance(body, dict):
        error = body.get("detail") or body.get("message")
    return None if error is None else str(error)
