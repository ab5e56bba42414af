"""LocalClient: the engine in the caller's own process."""

import threading
import time
from collections.abc import Callable, Sequence

from smoe.core.client import EngineHealth
from smoe.core.errors import RequestError
from smoe.core.model_info import ModelInfo
from smoe.core.placement_file import read_placement
from smoe.core.request import Delta, Request
from smoe.core.stats import EngineStats
from smoe.core.step import ExpertsMoved
from smoe.engine.core import EngineCore
from smoe.engine.texts import Texts


class LocalClient:
    """An EngineClient whose engine advances inside `poll`, on the polling thread; no thread of its own.

    An exception of the executor leaves `poll` as it is; every later call but `shutdown` raises RuntimeError.

    Other threads hand requests over through an inbox that is emptied between steps, so they never wait for one.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core, self._texts = core, Texts(core.tokenizer)
        self._inbox: list[Callable[[], None]] = []
        self._in_flight: set[str] = set()
        self._closed = False
        self._failure: str | None = None
        self._lock = threading.Lock()  # of inbox, ids and closing; held for moments only
        self._stepping = threading.Lock()  # of the core; held for a whole poll

    def info(self) -> ModelInfo:
        self._check_open()
        return self._core.info()

    def submit(self, requests: Sequence[Request]) -> None:
        self._check_open()
        batch = tuple(requests)
        with self._lock:
            for request in batch:
                if request.request_id in self._in_flight:
                    raise RequestError("request_id", request.request_id, "unique among requests in flight")
            self._core.check(batch)
            self._in_flight.update(request.request_id for request in batch)
            self._inbox.append(lambda: self._core.add(batch))

    def abort(self, request_ids: Sequence[str]) -> None:
        self._check_open()
        ids = tuple(request_ids)
        with self._lock:
            self._inbox.append(lambda: self._core.abort(ids))

    def poll(self, timeout_s: float | None = None) -> list[Delta]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._stepping:
            self._check_open()
            while True:
                self._empty_inbox()
                if self._closed:
                    self._core.abort_all()
                deltas = self._step()
                if deltas:
                    with self._lock:
                        self._in_flight.difference_update(d.request_id for d in deltas if d.finish_reason is not None)
                    return deltas
                idle = not self._in_flight and not self._core.has_work
                if idle or (deadline is not None and time.monotonic() >= deadline):
                    return []

    def decode_text(self, token_ids: Sequence[int]) -> str | None:
        self._check_open()
        return self._texts.decode(token_ids)

    def encode_text(self, text: str) -> list[int]:
        self._check_open()
        return self._texts.encode(text)

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        self._check_open()
        return self._texts.encode_chat(messages)

    def stats(self) -> EngineStats:
        self._check_open()
        return self._core.stats()

    def health(self) -> EngineHealth:
        if self._closed:
            raise RuntimeError("the engine has been shut down")
        return EngineHealth("running") if self._failure is None else EngineHealth("failed", self._failure)

    def resize_experts(self, memory: str) -> int:
        """Waits for a running poll."""
        with self._stepping:
            self._check_open()
            return self._core.resize_experts(memory)

    def apply_placement(self, folder: str) -> ExpertsMoved:
        """Waits for a running poll."""
        placement = read_placement(folder)
        with self._stepping:
            self._check_open()
            return self._core.apply_placement(placement, folder)

    def check_integrity(self) -> None:
        """Raises RuntimeError when rows, slots or caches are not accounted for; waits for a running poll."""
        with self._stepping:
            self._core.check_integrity()

    def shutdown(self) -> None:
        """A poll in progress on another thread returns the aborts of what was in flight."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with self._stepping:
            self._core.abort_all()
            self._core.executor.shutdown()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the engine has been shut down")
        if self._failure is not None:
            raise RuntimeError(f"the engine has failed: {self._failure}")

    def _step(self) -> list[Delta]:
        if not self._core.has_work:
            return []
        try:
            return self._core.step()
        except KeyboardInterrupt:  # the step is void, the requests are not: the caller may abort them or poll on
            self._core.recover(self._core.executor)
            raise
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            raise

    def _empty_inbox(self) -> None:
        with self._lock:
            jobs, self._inbox = self._inbox, []
        for job in jobs:
            job()
