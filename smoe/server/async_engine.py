"""An engine for asyncio: one thread polls it and hands each answer's deltas to whoever waits for them."""

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Literal

from smoe.core.client import EngineClient, EngineHealth
from smoe.core.errors import RequestError, SmoeError
from smoe.core.request import Delta, FinishReason, Request
from smoe.core.sampling import SamplingParams
from smoe.core.stats import EngineStats
from smoe.metrics.request_meter import RequestMeter
from smoe.server.errors import ApiError

log = logging.getLogger(__name__)
Phase = Literal["loading", "running", "draining", "failed", "closed"]
_RETRY_S = 1


class Answers:
    """The answers to one HTTP request under way: deltas as they come, and None when their time is over."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.index = {request.request_id: i for i, request in enumerate(requests)}
        self.streaming = False
        """Whether a response has taken them over, and ends them."""
        self._come: list[Delta | None] = []
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def put(self, delta: Delta | None) -> None:
        self._come.append(delta)
        self._news.set()

    async def take(self) -> list[Delta | None]:
        """All that have come since, at least one."""
        await self._news.wait()
        self._news.clear()
        come, self._come = self._come, []
        return come

    def expire_after(self, seconds: float) -> None:
        """One timer for all of them."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self.put, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class AsyncEngine:
    """Made and used on one event loop. `open_client` loads the model on a thread, so that a server can say meanwhile
    that it loads; it is the only user of its client.

    loading -> running -> draining -> closed, and from the first two, by itself, failed.
    """

    def __init__(self, open_client: Callable[[], EngineClient], *, max_queue: int, drain_s: float) -> None:
        self.phase: Phase = "loading"
        self.failure: str | None = None
        self.failure_details = ""
        """Further lines, for whoever has room."""
        self.on_phase: Callable[[], None] = lambda: None
        """Called on the loop when the phase has changed."""
        self.meter = RequestMeter()
        self._open, self._max_queue, self._drain_s = open_client, max_queue, drain_s
        self._client: EngineClient | None = None
        self._moe_layers: Sequence[int] = ()
        self._answers: dict[str, Answers] = {}
        self._ids = (f"req-{number}" for number in itertools.count())
        self._wake = threading.Event()
        self._poller = threading.Thread(target=self._run, name="engine-poll", daemon=True)
        self._idle = asyncio.Event()
        self._idle.set()
        self._loading: asyncio.Future[None] | None = None
        self._closing: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Future[None]] = set()

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

    @property
    def moe_layers(self) -> Sequence[int]:
        """Of the model; empty while there is none."""
        return self._moe_layers

    def health(self) -> EngineHealth | None:
        """Of the engine; None while there is none, and when it has ended."""
        if self._client is None or self.phase in ("failed", "closed"):
            return None
        return self._client.health()

    async def stats(self) -> EngineStats:
        """Raises RuntimeError or SmoeError where there is no engine to ask. May wait for a step."""
        if self._client is None:
            raise RuntimeError("no engine is loaded")
        return await asyncio.to_thread(self._client.stats)

    def start(self) -> None:
        """Begins to load. The phase is then running, or failed, and `failure` says why."""
        self._loop = asyncio.get_running_loop()
        self._loading = asyncio.ensure_future(self._load())

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
        now_s = time.monotonic()
        for request in requests:
            self.meter.begin(request.request_id, len(request.prompt_token_ids), now_s)
        work = asyncio.ensure_future(asyncio.to_thread(client.submit, requests))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:  # its client has gone, while the engine takes the requests all the same
            self._background(self._take_back(work, answers))
            raise
        except RequestError:
            self._refuse(answers)
            raise
        except (SmoeError, RuntimeError) as error:  # no fault of the request: the engine has just failed, or ended
            self._refuse(answers)
            raise ApiError(503, str(error), code="model_unavailable", retry_after_s=_RETRY_S) from error
        self._wake.set()
        return answers

    async def abort(self, answers: Answers) -> None:
        """Ends those that have not ended; their rows and slots are free within a step."""
        answers.close()
        ids = [request_id for request_id in answers.index if request_id in self._answers]
        self._forget(ids)
        for request_id in ids:
            self.meter.abort(request_id)
        if ids and self._client is not None and self.phase in ("running", "draining"):
            with contextlib.suppress(RuntimeError, SmoeError):  # the engine has ended meanwhile, and they with it
                await asyncio.to_thread(self._client.abort, ids)

    async def close(self) -> None:
        """Takes no more, gives those in flight `drain_s` to end, then ends the engine. May be called again."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _load(self) -> None:
        try:
            self._client = await self._opened()
            self._moe_layers = self._client.info().moe_layers
        except SmoeError as error:
            self._fail(str(error), getattr(error, "details", ""))
        except Exception as error:
            log.exception("the model did not load")
            self._fail(f"the model did not load: {error}")
        else:
            if self.phase == "loading":
                self._enter("running")
                self._poller.start()

    def _opened(self) -> "asyncio.Future[EngineClient]":
        """On a thread that nobody waits for when the process is asked to end meanwhile."""
        future: asyncio.Future[EngineClient] = self._loop.create_future()

        def work() -> None:
            try:
                client = self._open()
            except BaseException as error:
                self._tell(future.set_exception, error)
            else:
                self._tell(future.set_result, client)

        threading.Thread(target=work, name="engine-load", daemon=True).start()
        return future

    async def _close(self) -> None:
        if self.phase == "failed":
            if self._client is not None:
                await asyncio.to_thread(self._client.shutdown)
            return
        if self.phase == "running":
            self._enter("draining")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), self._drain_s)
        self.phase = "closed"
        self._end_all("abort", f"the server has ended, after {self._drain_s:g} s for answers in flight")
        self._wake.set()
        if self._loading is not None:
            await self._loading
        if self._client is not None:
            await asyncio.to_thread(self._client.shutdown)
        if self._poller.is_alive():
            await asyncio.to_thread(self._poller.join)
        self.on_phase()

    async def _take_back(self, submitted: "asyncio.Future[None]", answers: Answers) -> None:
        with contextlib.suppress(SmoeError, RuntimeError):  # refused: then there is nothing to take back
            await submitted
        await self.abort(answers)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _forget(self, ids: Iterable[str]) -> None:
        for request_id in list(ids):
            self._answers.pop(request_id, None)
        if not self._answers:
            self._idle.set()

    def _refuse(self, answers: Answers) -> None:
        """They never ran."""
        self._forget(answers.index)
        for request_id in answers.index:
            self.meter.refuse(request_id)

    def _run(self) -> None:
        assert self._client is not None
        while self.phase in ("running", "draining"):
            self._wake.clear()
            try:
                deltas = self._client.poll(1.0)
                health = self._client.health()
            except Exception as error:
                log.exception("the engine has failed")
                self._tell(self._fail, f"the engine has failed: {error}")
                return
            if deltas:
                self._tell(self._deliver, deltas)
            elif health.phase == "failed":
                self._tell(self._fail, f"the engine has failed: {health.detail}")
                return
            else:
                self._wake.wait(1.0)  # a poll of an idle engine returns at once

    def _tell(self, deliver: Callable[[Any], None], what: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody listens any more
            self._loop.call_soon_threadsafe(deliver, what)

    def _deliver(self, deltas: Sequence[Delta]) -> None:
        now_s = time.monotonic()
        for delta in deltas:
            self.meter.note(delta, now_s)
            answer = self._answers.get(delta.request_id)
            if answer is None:  # its client has gone
                continue
            answer.put(delta)
            if delta.finish_reason is not None:
                self._forget([delta.request_id])

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.on_phase()

    def _fail(self, why: str, details: str = "") -> None:
        if self.phase in ("closed", "failed"):
            return
        self.failure, self.failure_details = why, details
        self._enter("failed")
        self._end_all("error", why)

    def _end_all(self, reason: FinishReason, why: str) -> None:
        """Answers whose engine will send no more."""
        self._deliver(
            [Delta(request_id=i, text="", token_ids=(), finish_reason=reason, error=why) for i in self._answers]
        )
