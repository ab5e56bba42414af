"""Several requests of one client, each read on its own: sorts what a poll brings by request."""

import time
from collections import deque
from collections.abc import Iterator, Sequence

from smoe.core.client import EngineClient
from smoe.core.request import Delta, Request


class Inbox:
    """Reads may interleave: a delta polled while waiting for another request is kept for its own reader.

    Not thread-safe; the only one to poll its client. Each delta comes with the `time.perf_counter` of its arrival.
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._waiting: dict[str, deque[tuple[float, Delta]]] = {}

    def submit(self, requests: Sequence[Request]) -> None:
        """Raises RequestError, and then none of them is queued."""
        self._client.submit(requests)
        self._waiting.update({request.request_id: deque() for request in requests})

    def read(self, request_id: str) -> Iterator[tuple[float, Delta]]:
        """Deltas up to the last one. An abandoned read aborts its request."""
        queue = self._waiting[request_id]
        try:
            while True:
                while not queue:
                    self._poll(request_id)
                arrived, delta = queue.popleft()
                if delta.finish_reason is not None:
                    break
                yield arrived, delta
        except GeneratorExit:
            self._client.abort([request_id])
            raise
        finally:
            del self._waiting[request_id]
        yield arrived, delta

    def _poll(self, request_id: str) -> None:
        deltas = self._client.poll()
        if not deltas:
            raise RuntimeError(f"the engine ended without an answer to {request_id}")
        now = time.perf_counter()
        for delta in deltas:
            queue = self._waiting.get(delta.request_id)
            if queue is not None:  # else its reader has gone
                queue.append((now, delta))
