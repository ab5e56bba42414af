"""A server that plays scripts, and a clock that only it moves: what it sent when is known exactly."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any


class HandClock:
    """Stands still until it is turned. `read` waits until somebody has looked at it since."""

    def __init__(self) -> None:
        self.time_s = 100.0
        self._looked = asyncio.Event()

    def now_s(self) -> float:
        self._looked.set()
        return self.time_s

    async def sleep_until(self, at_s: float) -> None:
        self.time_s = max(self.time_s, at_s)
        await asyncio.sleep(0)

    def turn(self, at_s: float) -> None:
        self.time_s = at_s
        self._looked.clear()

    async def read(self) -> None:
        await self._looked.wait()


class Caller:
    """One request as the toy has it: path, headers in lower case, the decoded body, and ways to answer in pieces."""

    def __init__(self, path: str, headers: dict[str, str], body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.path, self.headers, self.body, self._writer = path, headers, body, writer

    async def head(self, status: str = "200 OK", kind: str = "text/event-stream", extra: str = "") -> None:
        """Without a length: the answer ends with the connection."""
        await self.raw(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n{extra}\r\n".encode())

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def event(self, body: object) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        await self.raw(f"data: {text}\n\n".encode())

    async def token(self, text: str = "a", finish: str | None = None) -> None:
        await self.event({"choices": [{"index": 0, "text": text, "finish_reason": finish}]})

    async def end(self, prompt_tokens: int, completion_tokens: int) -> None:
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
        await self.event({"choices": [], "usage": usage})
        await self.event("[DONE]")


@asynccontextmanager
async def toy_server(play: Callable[[Caller], Awaitable[None]]) -> AsyncIterator[str]:
    """Its base URL. `play` answers each request; then the connection is closed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:]) if name}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        await play(Caller(head[0].split()[1], headers, json.loads(body or b"{}"), writer))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield f"http://127.0.0.1:{port}"
