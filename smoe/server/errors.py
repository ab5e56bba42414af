"""Errors as OpenAI's API says them: {"error": {"message", "type", "param", "code"}}."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from smoe.core.errors import RequestError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """`param` is the field that is to blame; `code` a word for programs; `retry_after_s` becomes a header."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after_s: int = 0
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = {"Retry-After": str(retry_after_s)} if retry_after_s else {}

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


def of_request(error: RequestError) -> ApiError:
    param = "prompt" if error.field.startswith("prompt") else error.field
    return ApiError(400, str(error), param=param, code="invalid_value")


def install(app: FastAPI) -> None:
    """Every error of the app in that shape, those of the framework too."""

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> JSONResponse:
        return error.response()

    @app.exception_handler(RequestError)
    async def request_error(_: Request, error: RequestError) -> JSONResponse:
        return of_request(error).response()

    @app.exception_handler(RequestValidationError)
    async def validation_error(_: Request, error: RequestValidationError) -> JSONResponse:
        return of_validation(error).response()

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        found = ApiError(error.status_code, str(error.detail), code=_code(error.status_code))
        return JSONResponse(found.body(), found.status, _str_headers(error.headers))

    @app.exception_handler(Exception)
    async def our_fault(_: Request, error: Exception) -> JSONResponse:
        return ApiError(500, f"internal error: {type(error).__name__}", code="internal_error").response()


def of_validation(error: RequestValidationError) -> ApiError:
    """The first of its complaints, with the field's path."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"] if part != "body")
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {first['ctx']['error']} at byte {path}", code="invalid_json")
    return ApiError(422, f"{path or 'body'}: {first['msg']}", param=path or None, code=str(first["type"]))


def _code(status: int) -> str | None:
    return {404: "not_found", 405: "method_not_allowed"}.get(status)


def _str_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    return dict(headers or {})
