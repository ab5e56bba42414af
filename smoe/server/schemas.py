"""Bodies of requests, strict: an unknown field, or a value that would have no effect, is an error. Null is as if the
field were left out.

Fields and defaults as OpenAI has them; `top_k`, `min_p`, `ignore_eos`, `stop_token_ids` and `return_token_ids` as vLLM
has them.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from smoe.core.errors import RequestError
from smoe.core.sampling import MAX_LOGPROBS, SamplingParams

MAX_ANSWERS, MAX_STOPS, MAX_PROMPTS = 128, 16, 256
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Text = Annotated[str, Field(min_length=1)]
DEFAULT_MAX_TOKENS = 16


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        return {name: value for name, value in body.items() if value is not None} if isinstance(body, dict) else body


class StreamOptions(_Strict):
    include_usage: bool = False


class Sampling(_Strict):
    """What both kinds of completion share."""

    model: str
    n: int = Field(1, ge=1, le=MAX_ANSWERS)
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int = Field(0, ge=0)
    min_p: float = Field(0.0, ge=0.0, le=1.0)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stop: Text | Annotated[list[Text], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = []
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    presence_penalty: Literal[0] | Annotated[float, Field(ge=0.0, le=0.0)] | None = None
    frequency_penalty: Literal[0] | Annotated[float, Field(ge=0.0, le=0.0)] | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    user: str | None = None
    return_token_ids: bool = False

    @model_validator(mode="after")
    def _options_have_an_effect(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options", self.stream_options.model_dump(), "none without stream")
        return self

    def params(self, max_tokens: int | None, logprobs: int | None) -> list[SamplingParams]:
        """One of each of the n answers: with a seed, the i-th has seed + i. Raises RequestError."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return [
            SamplingParams(
                max_tokens=max_tokens,
                temperature=1.0 if self.temperature is None else self.temperature,
                top_p=1.0 if self.top_p is None else self.top_p,
                top_k=self.top_k,
                min_p=self.min_p,
                seed=None if self.seed is None else (self.seed + i) % 2**63,
                stop=stop,
                stop_token_ids=tuple(self.stop_token_ids),
                ignore_eos=self.ignore_eos,
                logprobs=logprobs,
            )
            for i in range(self.n)
        ]


class CompletionBody(Sampling):
    prompt: str | TokenIds | Annotated[list[str | TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
    max_tokens: int | None = Field(DEFAULT_MAX_TOKENS, ge=1)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool = False
    best_of: int | None = Field(None, ge=1)
    suffix: Literal[""] | None = None

    @model_validator(mode="after")
    def _is_offered(self) -> Self:
        if self.best_of is not None and self.best_of != self.n:
            raise RequestError("best_of", self.best_of, f"n, {self.n}: more are not generated")
        if self.echo and self.logprobs is not None:
            limit = "not with logprobs: those of the prompt are not computed"
            raise RequestError("echo", self.echo, limit)
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


class ContentPart(_Strict):
    type: Literal["text"]
    text: str


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": content, **({} if self.name is None else {"name": self.name})}


class ResponseFormat(_Strict):
    type: Literal["text"]


class ChatBody(Sampling):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    response_format: ResponseFormat | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs", self.top_logprobs, "none without logprobs")
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            limit = f"max_tokens, {self.max_tokens}, where both are given"
            raise RequestError("max_completion_tokens", self.max_completion_tokens, limit)
        return self

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class TokenizeBody(_Strict):
    """Either a text or a conversation, as vLLM's route takes it."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("prompt", self.prompt, "either prompt or messages")
        return self


class DetokenizeBody(_Strict):
    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]
