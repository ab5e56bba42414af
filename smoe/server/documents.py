"""What the OpenAPI document says of answers: their shapes, by status. Nothing here runs when a request is answered."""

from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel

Responses = dict[int | str, dict[str, Any]]


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorDetail


class UsageBody(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class _Choice(BaseModel):
    """`lossy` only where a policy may change answers, `token_ids` only where they are asked for."""

    index: int
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None
    logprobs: dict[str, Any] | None
    token_ids: list[int] = []
    lossy: dict[str, Any] = {}


class CompletionChoice(_Choice):
    text: str


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(_Choice):
    message: AssistantMessage


class _Answer(BaseModel):
    id: str
    created: int
    model: str
    usage: UsageBody


class CompletionAnswer(_Answer):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ChatAnswer(_Answer):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class Tokens(BaseModel):
    tokens: list[int]
    count: int
    max_model_len: int


class PlainText(BaseModel):
    prompt: str


class Health(BaseModel):
    status: Literal["ok", "degraded"]
    in_flight: int
    detail: str = ""


class NotReady(BaseModel):
    status: Literal["loading", "draining", "failed", "closed"]
    error: str = ""


_MEANING = {
    400: "A value that this model cannot take, or no JSON.",
    401: "No valid API key.",
    404: "No such model.",
    413: "The body is too large.",
    415: "The body is not said to be JSON.",
    422: "A field that is unknown, missing, out of range, or without effect.",
    429: "The queue is full.",
    500: "Our fault.",
    503: "Loading, draining or failed, or no end within the time limit. Retry-After says when to come again.",
}
_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}


def _errors(*statuses: int) -> Responses:
    return {status: {"model": ErrorBody, "description": _MEANING[status]} for status in statuses}


_BODY = _errors(400, 401, 404, 413, 415, 422, 500, 503)
_ANSWER = {**_BODY, **_errors(429)}
_STREAM = {"content": {"text/event-stream": {"schema": _EVENT}}}
COMPLETIONS: Responses = {
    200: {"model": CompletionAnswer, "description": "The answer, or its pieces.", **_STREAM},
    **_ANSWER,
}
CHAT: Responses = {200: {"model": ChatAnswer, "description": "The answer, or its pieces.", **_STREAM}, **_ANSWER}
MODELS: Responses = {200: {"model": ModelList}, **_errors(401, 503)}
ONE_MODEL: Responses = {200: {"model": ModelCard}, **_errors(401, 404, 503)}
TOKENIZE: Responses = {200: {"model": Tokens}, **_BODY}
DETOKENIZE: Responses = {200: {"model": PlainText}, **_BODY}
METRICS: Responses = _errors(401)
HEALTH: Responses = {
    200: {"model": Health, "description": "Requests are taken."},
    503: {"model": NotReady, "description": "Requests are refused."},
}


def require_key(app: FastAPI) -> None:
    """The document says that every route but /health wants the key."""
    plain = app.openapi

    def with_key() -> dict[str, Any]:
        body = plain()
        body["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        body["security"] = [{"key": []}]
        body["paths"]["/health"]["get"]["security"] = []
        return body

    app.openapi = with_key  # type: ignore[method-assign]
