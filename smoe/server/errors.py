"""Errors as OpenAI's API says them: {"error": {"message", "type", "param", "code"}}."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
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
_CODES = {400: "invalid_json", 404: "not_found", 405: "method_not_allowed"}
"""Of the framework's own errors. 400 is what a body gets that is no UTF-8, or too deep."""


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
    """Every error of the app in that shape, those of the framework too; but see smoe.server.complaints."""

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> JSONResponse:
        return error.response()

    @app.exception_handler(RequestError)
    async def request_error(_: Request, error: RequestError) -> JSONResponse:
        return of_request(error).response()

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        text = "the body is not JSON" if error.status_code == 400 else str(error.detail)
        found = ApiError(error.status_code, text, code=_CODES.get(error.status_code))
        return JSONResponse(found.body(), found.status, _str_headers(error.headers))

    @app.exception_handler(Exception)
    async def our_fault(_: Request, error: Exception) -> JSONResponse:
        return ApiError(500, f"internal error: {type(error).__name__}", code="internal_error").response()


def _str_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    return dict(headers or {})
