"""A client of an ASGI app that reads chunk by chunk, and can leave in the middle."""

import asyncio
import json
from collections.abc import Callable
from typing import Any


class Call:
    """One POST. `chunks` are the body as it comes; `leave` is what a server sees when the connection is gone."""

    def __init__(self, app: Any, body: dict[str, Any], path: str = "/v1/completions") -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.chunks: list[bytes] = []
        self._news = asyncio.Condition()
        self._left = asyncio.Event()
        self._asked = False
        self._body = json.dumps(body).encode()
        headers = [(b"content-type", b"application/json"), (b"host", b"server")]
        scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1"}
        scope |= {"method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
        scope |= {"scheme": "http", "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}
        self.ended = asyncio.ensure_future(app(scope, self._receive, self._send))

    def leave(self) -> None:
        self._left.set()

    async def until(self, there: Callable[[], bool]) -> None:
        async with self._news:
            await asyncio.wait_for(self._news.wait_for(there), 60)

    async def until_event(self, count: int) -> None:
        """So many server-sent events are there."""
        await self.until(lambda: len(self.events) >= count)

    @property
    def events(self) -> list[Any]:
        lines = b"".join(self.chunks).split(b"\n\n")
        return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]

    @property
    def json(self) -> Any:
        return json.loads(b"".join(self.chunks))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.chunks.append(message.get("body", b""))
        async with self._news:
            self._news.notify_all()
