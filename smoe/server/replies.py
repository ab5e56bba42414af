"""What the two routes put around the pieces of an answer. One object an HTTP request."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from smoe.core.request import TokenLogprob, Usage
from smoe.server.token_text import TokenTexts, chat_logprobs, completion_logprobs


@dataclass(slots=True)
class Piece:
    """Part of one answer, or all of it. `finish_reason` and what a lossy policy changed come with the last, the ids of
    the prompt with the first."""

    index: int
    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    offset: int = 0
    """Characters of this answer before its first token."""
    prompt_token_ids: Sequence[int] | None = None
    substituted_slots: int = 0
    substituted_mass: float = 0.0

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @classmethod
    def joined(cls, parts: Sequence["Piece"]) -> "Piece":
        """All parts of one answer, in order."""
        logprobs = None
        if parts[0].logprobs is not None:
            logprobs = [entry for part in parts for entry in part.logprobs or ()]
        return replace(
            parts[-1],
            text="".join(part.text for part in parts),
            token_ids=[token for part in parts for token in part.token_ids],
            logprobs=logprobs,
            offset=parts[0].offset,
            prompt_token_ids=parts[0].prompt_token_ids,
        )


class Reply(Protocol):
    def whole(self, pieces: Sequence[Piece], usage: Usage) -> dict[str, Any]: ...

    def chunk(self, piece: Piece) -> dict[str, Any]: ...

    def is_plain(self, piece: Piece) -> bool:
        """Whether its chunk differs from those of other plain pieces of the same answer by its text alone."""

    def usage_chunk(self, usage: Usage) -> dict[str, Any]: ...


@dataclass(slots=True)
class _Reply:
    model: str
    lossy: bool
    texts: TokenTexts
    show_ids: bool
    """Whether token ids are asked for: `return_token_ids`, as vLLM has it."""
    created: int = field(default_factory=lambda: int(time.time()))

    def is_plain(self, piece: Piece) -> bool:
        begins_or_ends = piece.prompt_token_ids is not None or piece.finish_reason is not None
        return bool(piece.text) and piece.logprobs is None and not begins_or_ends and not self.show_ids

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    @property
    def _id(self) -> str:
        raise NotImplementedError

    def _ids(self, piece: Piece) -> dict[str, Any]:
        return {"token_ids": list(piece.token_ids)} if self.show_ids else {}

    def _prompt_ids(self, piece: Piece) -> dict[str, Any]:
        if not self.show_ids:
            return {}
        return {"prompt_token_ids": None if piece.prompt_token_ids is None else list(piece.prompt_token_ids)}

    def _end(self, piece: Piece) -> dict[str, Any]:
        """What every choice ends with. `lossy` is not OpenAI's: an answer that may differ from the model's says so."""
        end: dict[str, Any] = {"finish_reason": piece.finish_reason}
        if piece.finish_reason is not None:
            end["stop_reason"] = piece.stop_reason
            if self.lossy:
                slots, mass = piece.substituted_slots, piece.substituted_mass
                end["lossy"] = {"lossy": True, "substituted_slots": slots, "substituted_mass": mass}
        return end


@dataclass(slots=True)
class CompletionReply(_Reply):
    name: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")

    @property
    def _id(self) -> str:
        return self.name

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> dict[str, Any]:
        return {**self._head("text_completion", [self._choice(p) for p in pieces]), "usage": usage_body(usage)}

    def chunk(self, piece: Piece) -> dict[str, Any]:
        return self._head("text_completion", [self._choice(piece)])

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        return {**self._head("text_completion", []), "usage": usage_body(usage)}

    def _choice(self, piece: Piece) -> dict[str, Any]:
        logprobs = None
        if piece.logprobs is not None:
            logprobs = completion_logprobs(self.texts, piece.logprobs, piece.offset)
        ids = {**self._prompt_ids(piece), **self._ids(piece)}
        return {"index": piece.index, "text": piece.text, "logprobs": logprobs, **ids, **self._end(piece)}


@dataclass(slots=True)
class ChatReply(_Reply):
    name: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")

    @property
    def _id(self) -> str:
        return self.name

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> dict[str, Any]:
        choices = [
            {
                "index": piece.index,
                "message": {"role": "assistant", "content": piece.text, "refusal": None},
                "logprobs": self._logprobs(piece),
                **self._ids(piece),
                **self._end(piece),
            }
            for piece in pieces
        ]
        prompt = self._prompt_ids(pieces[0])
        return {**self._head("chat.completion", choices), **prompt, "usage": usage_body(usage)}

    def chunk(self, piece: Piece) -> dict[str, Any]:
        first = piece.prompt_token_ids is not None
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        if piece.text or first:
            delta["content"] = piece.text
        rest = {"logprobs": self._logprobs(piece), **self._ids(piece), **self._end(piece)}
        head = self._head("chat.completion.chunk", [{"index": piece.index, "delta": delta, **rest}])
        return {**head, **self._prompt_ids(piece)} if first else head

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        return {**self._head("chat.completion.chunk", []), "usage": usage_body(usage)}

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        return None if piece.logprobs is None else chat_logprobs(self.texts, piece.logprobs)


def usage_body(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
