"""An engine for asyncio: one thread polls it and hands each answer's deltas to whoever waits for them."""

import asyncio
import contextlib
import itertools
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Literal

from smoe.core.client import EngineClient
from smoe.core.errors import SmoeError
from smoe.core.request import Delta, Request
from smoe.core.sampling import SamplingParams
from smoe.server.errors import ApiError

log = logging.getLogger(__name__)
Phase = Literal["loading", "running", "draining", "failed", "closed"]
_RETRY_S = 1


class Answers:
    """The answers to one HTTP request under way: iterates over (index, delta) as they come, until all have ended."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.index = {request.request_id: i for i, request in enumerate(requests)}
        self.queue: asyncio.Queue[Delta] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Delta]]:
        left = len(self.index)
        while left:
            delta = await self.queue.get()
            left -= delta.finish_reason is not None
            yield self.index[delta.request_id], delta


class AsyncEngine:
    """Made and used on one event loop. `open_client` loads the model on a thread, so that a server can say meanwhile
    that it loads; it is the only user of its client."""

    def __init__(self, open_client: Callable[[], EngineClient], *, max_queue: int) -> None:
        self.phase: Phase = "loading"
        self.failure: str | None = None
        self.on_failure: Callable[[], None] = lambda: None
        """Called once when the model does not load, or the engine ends by itself."""
        self._open, self._max_queue = open_client, max_queue
        self._client: EngineClient | None = None
        self._answers: dict[str, Answers] = {}
        self._ids = (f"req-{number}" for number in itertools.count())
        self._wake = threading.Event()
        self._poller = threading.Thread(target=self._run, name="engine-poll", daemon=True)
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_in_flight(self) -> int:
        return len(self._answers)

    @property
    def client(self) -> EngineClient:
        """Raises ApiError (503) while there is none."""
        if self._client is None or self.phase in ("failed", "closed"):
            why = self.failure or f"the model is {self.phase}"
            raise ApiError(503, why, code=f"model_{self.phase}", retry_after_s=_RETRY_S)
        return self._client

    async def start(self) -> None:
        """Returns when the model is loaded, or could not be: then `phase` is failed, and `failure` says why."""
        self._loop = asyncio.get_running_loop()
        try:
            self._client = await asyncio.to_thread(self._open)
        except SmoeError as error:
            self._end("failed", str(error))
            return
        except Exception as error:
            log.exception("the model did not load")
            self._end("failed", f"the model did not load: {error}")
            return
        if self.phase == "loading":
            self.phase = "running"
            self._poller.start()

    async def submit(self, items: Sequence[tuple[Sequence[int], SamplingParams]]) -> Answers:
        """One answer to each prompt (token ids); all or none are queued.

        Raises RequestError for what can never run, ApiError (429) beyond the queue, (503) when there is no engine.
        """
        client = self.client
        if self.phase == "draining":
            raise ApiError(503, "the server is shutting down", code="draining", retry_after_s=_RETRY_S)
        if self.num_in_flight + len(items) > self._max_queue:
            what = f"{self.num_in_flight} answers in flight, {len(items)} more asked for"
            raise ApiError(429, f"{what} (at most {self._max_queue})", code="queue_full", retry_after_s=_RETRY_S)
        requests = [
            Request(request_id=next(self._ids), prompt_token_ids=tuple(prompt), params=params)
            for prompt, params in items
        ]
        answers = Answers(requests)
        self._answers.update(dict.fromkeys(answers.index, answers))  # before the engine has them: a delta may be quick
        self._idle.clear()
        try:
            await asyncio.to_thread(client.submit, requests)
        except BaseException:
            self._forget(answers.index)
            raise
        self._wake.set()
        return answers

    async def abort(self, answers: Answers) -> None:
        """Ends those that have not ended; their rows and slots are free within a step."""
        ids = [request_id for request_id in answers.index if request_id in self._answers]
        self._forget(ids)
        if ids and self._client is not None and self.phase in ("running", "draining"):
            with contextlib.suppress(RuntimeError):  # the engine has ended meanwhile, and they with it
                await asyncio.to_thread(self._client.abort, ids)

    async def close(self, drain_s: float) -> None:
        """Takes no more, gives those in flight `drain_s` to end, then ends the engine."""
        if self.phase == "closed":
            return
        if self.phase == "running":
            self.phase = "draining"
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), drain_s)
        self.phase = "closed"
        self._wake.set()
        if self._client is not None:
            await asyncio.to_thread(self._client.shutdown)
        if self._poller.is_alive():
            await asyncio.to_thread(self._poller.join)

    def _forget(self, ids: Iterable[str]) -> None:
        for request_id in list(ids):
            self._answers.pop(request_id, None)
        if not self._answers:
            self._idle.set()

    def _run(self) -> None:
        assert self._client is not None
        while self.phase in ("running", "draining"):
            self._wake.clear()
            try:
                deltas = self._client.poll(1.0)
            except Exception as error:
                log.exception("the engine has failed")
                self._tell(self._fail, f"the engine has failed: {error}")
                return
            if deltas:
                self._tell(self._deliver, deltas)
            else:
                self._wake.wait(1.0)  # a poll of an idle engine returns at once

    def _tell(self, deliver: Callable[[Any], None], what: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody listens any more
            self._loop.call_soon_threadsafe(deliver, what)

    def _deliver(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            answer = self._answers.get(delta.request_id)
            if answer is None:  # its client has gone
                continue
            answer.queue.put_nowait(delta)
            if delta.finish_reason is not None:
                self._forget([delta.request_id])

    def _end(self, phase: Phase, why: str) -> None:
        self.phase, self.failure = phase, why
        self.on_failure()

    def _fail(self, why: str) -> None:
        if self.phase == "closed":
            return
        self._end("failed", why)
        ends = [Delta(request_id=i, text="", token_ids=(), finish_reason="error", error=why) for i in self._answers]
        self._deliver(ends)
