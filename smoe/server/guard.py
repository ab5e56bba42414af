"""What a request has to pass before its body is read: key, media type, size. Plain ASGI, so that streams stay as they
are."""

import contextlib
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from smoe.server.config import ServerConfig
from smoe.server.errors import ApiError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
_OPEN = "/health"


class _TooLarge(Exception):
    pass


class Guard:
    def __init__(self, app: App, config: ServerConfig) -> None:
        self._app, self._config = app, config
        self._key = None if config.api_key is None else config.api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        refused = self._refusal(scope, headers)
        if refused is not None:
            await refused.response()(scope, receive, send)
            return
        most, seen, begun, dropped = self._config.max_body_bytes, 0, False, False

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > most:
                raise _TooLarge
            return message

        async def sent(message: Message) -> None:
            """What the app makes of _TooLarge is not what it means."""
            nonlocal begun, dropped
            dropped = dropped or (seen > most and not begun)
            if not dropped:
                begun = True
                await send(message)

        with contextlib.suppress(_TooLarge):
            await self._app(scope, counted, sent)
        if seen > most and not begun:
            await self._too_large(seen).response()(scope, receive, send)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> ApiError | None:
        if self._key is not None and scope["path"] != _OPEN:
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not secrets.compare_digest(given.strip(), self._key):
                return ApiError(401, "a valid API key is needed, as a bearer token", code="invalid_api_key")
        if scope["method"] not in ("POST", "PUT", "PATCH"):
            return None
        media = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if media != b"application/json":
            said = media.decode("latin-1") or "none"
            return ApiError(415, f"content-type: {said} (application/json)", code="unsupported_media_type")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._config.max_body_bytes:
            return self._too_large(int(length))
        return None

    def _too_large(self, size: int) -> ApiError:
        return ApiError(
            413, f"body: {size} bytes or more (at most {self._config.max_body_bytes})", code="body_too_large"
        )
