"""A streamed completion read from a socket, piece by piece as it comes."""

import http.client
import json
from collections.abc import Iterator
from typing import Any


class Stream:
    """Iterates over the events of one request, JSON each; `close` leaves in the middle."""

    def __init__(self, port: int, body: dict[str, Any], *, key: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        self._connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}).encode(), headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self._answer:
            if line.startswith(b"data: {"):
                yield json.loads(line[len(b"data: ") :])

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def token_ids(events: list[dict[str, Any]]) -> list[int]:
    """Of an answer asked for with `return_token_ids`."""
    return [token for event in events for token in event["choices"][0]["token_ids"]]
