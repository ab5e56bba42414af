"""What is wrong with a body, in one line: field, value, limit."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from smoe.core.errors import RequestError
from smoe.server.errors import ApiError

Complaint = dict[str, Any]
_WORDS = {
    "missing": "required",
    "extra_forbidden": "no such field is taken here",
    "literal_error": "only {expected}",
    "model_attributes_type": "a JSON object",
    "too_short": "at least {min_length} items",
    "too_long": "at most {max_length} items",
    "string_too_short": "at least {min_length} characters",
}


def install(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def validation_error(_: Request, error: RequestValidationError) -> Response:
        return of_validation(error).response()


def of_validation(error: RequestValidationError) -> ApiError:
    """Of the first field that is complained of. Where it may be one of several kinds, what is wrong with the kind that
    the value comes closest to."""
    complaints: list[Complaint] = list(error.errors())
    first = complaints[0]
    if first["type"] == "json_invalid":
        at = first["loc"][-1]
        return ApiError(400, f"the body is not JSON: {first['ctx']['error']} at byte {at}", code="invalid_json")
    if isinstance(reason := first.get("ctx", {}).get("error"), RequestError):
        return ApiError(422, str(reason), param=reason.field, code="value_error")
    paths = [_path(each, error.body) for each in complaints]
    rivals = [(path, each) for path, each in zip(paths, complaints, strict=True) if path[:1] == paths[0][:1]]
    deepest = max(len(path) for path, _ in rivals)
    closest = [(path, each) for path, each in rivals if len(path) == deepest]
    of_value = [(path, each) for path, each in closest if not each["type"].endswith("_type")]
    path, chosen = (of_value or closest)[0]
    limits = [_limit(chosen)] if of_value else list(dict.fromkeys(_limit(each) for _, each in closest))
    name, limit = ".".join(map(str, path)), " or ".join(limits)
    value_is_said = chosen["type"] not in ("missing", "extra_forbidden")
    text = str(RequestError(name or "body", chosen["input"], limit)) if value_is_said else f"{name or 'body'}: {limit}"
    return ApiError(422, text, param=name or None, code=str(chosen["type"]))


def _path(complaint: Complaint, body: Any) -> Sequence[str | int]:
    """Where in the body: between field names pydantic tells which kind of value it tried there."""
    path: list[str | int] = []
    place: Sequence[str | int] = complaint["loc"][1:]
    for i, part in enumerate(place):
        is_missing = complaint["type"] == "missing" and i == len(place) - 1
        is_key = isinstance(body, dict) and part in body
        is_index = isinstance(body, list) and isinstance(part, int) and part < len(body)
        if is_missing or is_key or is_index:
            path.append(part)
        if is_key or is_index:
            body = body[part]
    return path


def _limit(complaint: Complaint) -> str:
    words = _WORDS.get(complaint["type"])
    if words is not None:
        return words.format(**complaint.get("ctx", {}))
    return str(complaint["msg"]).removeprefix("Input should be ")
