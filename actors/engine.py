"""Engine: the actor that owns the scheduler and drives the shards, one step after another, on a thread of its own."""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from smoe.actors.executor import RayExecutor
from smoe.actors.links import Link, ShardsLost
from smoe.actors.outcome import Failed, attempt, one_line
from smoe.actors.shard import ShardReady
from smoe.core.config import EngineConfig
from smoe.core.errors import CollectiveError
from smoe.core.model_info import ModelInfo
from smoe.core.placement import Placement
from smoe.core.request import Delta, Request
from smoe.core.stats import EngineStats
from smoe.core.step import ExpertsMoved
from smoe.engine.core import EngineCore
from smoe.engine.rss import Rss

log = logging.getLogger(__name__)
T = TypeVar("T")

# A poll costs three processes about as much time as a step of a small model; steps faster than this share one.
_POLL_INTERVAL_S = 0.004


class Engine:
    """Methods are called by Ray on threads of their own and are answered while a step runs.

    Whatever touches the scheduler is queued and carried out between two steps, so the scheduler needs no lock.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._core: EngineCore | None = None
        self._link: Link | None = None
        self._lost: str | None = None
        self._stopping = False
        self._commands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._outbox: list[Delta] = []
        self._polled_at = 0.0
        # One lock for all of the above; `_wake` is for the step thread, `_news` for those who wait for results.
        lock = threading.Lock()
        self._wake = threading.Condition(lock)
        self._news = threading.Condition(lock)
        self._thread = threading.Thread(target=self._loop, name="steps", daemon=True)
        self._thread.start()
        # Importing what a core needs takes seconds: here, while the shards load.
        threading.Thread(target=_warm_up, daemon=True).start()

    def attach(self, ready: ShardReady, make_link: Callable[[], Link]) -> Failed | None:
        """Connects loaded shards: first the engine starts with them, later they replace lost ones."""
        return self._between_steps(lambda: self._attach(ready, make_link))

    def until_lost(self) -> str:
        """Waits until the shards fail, and says the first cause."""
        with self._news:
            self._news.wait_for(lambda: self._lost is not None)
            return str(self._lost)

    def info(self) -> ModelInfo:
        return self._started().info()

    def submit(self, requests: Sequence[Request]) -> Failed | None:
        return self._between_steps(lambda: self._started().add(requests))

    def abort(self, request_ids: Sequence[str]) -> Failed | None:
        return self._between_steps(lambda: self._started().abort(request_ids))

    def stats(self) -> EngineStats | Failed:
        """Memory is the sum over this process and the shards'."""
        return self._between_steps(self._stats)

    def resize_experts(self, memory: str) -> int | Failed:
        return self._between_steps(lambda: self._started().resize_experts(memory))

    def apply_placement(self, placement: Placement, name: str) -> ExpertsMoved | Failed:
        return self._between_steps(lambda: self._apply_placement(placement, name))

    def poll(self, timeout_s: float) -> list[Delta]:
        """Deltas since the last call; waits for one at most `timeout_s`.

        Within `_POLL_INTERVAL_S` of the last answer only the end of a request is news.
        """
        with self._news:
            self._news.wait_for(lambda: self._outbox, timeout_s)
            early_s = self._polled_at + _POLL_INTERVAL_S - time.monotonic()
            if self._outbox and early_s > 0:
                self._news.wait_for(lambda: _any_ended(self._outbox), early_s)
            deltas, self._outbox = self._outbox, []
            self._polled_at = time.monotonic()
            return deltas

    def pid(self) -> int:
        return os.getpid()

    def stop(self) -> Failed | None:
        """Ends the loop after the step in flight, and the shards' executors with it."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()
        if self._core is None or self._lost is not None:
            return None
        return attempt(self._core.executor.shutdown)

    def _attach(self, ready: ShardReady, make_link: Callable[[], Link]) -> None:
        if self._link is not None:
            self._link.close()
        try:
            self._link = make_link()
        except ShardsLost as error:
            raise CollectiveError(str(error)) from error
        executor = RayExecutor(ready, self._link, ranks_per_group=self._config.parallel.tensor_parallel_size)
        if self._core is None:
            from smoe.engine.build import build_core

            self._core = build_core(self._config, executor)
        else:
            executor.count_from(self._core.executor)
            self._core.recover(executor)
        with self._news:
            self._lost = None

    def _apply_placement(self, placement: Placement, name: str) -> ExpertsMoved:
        try:
            return self._started().apply_placement(placement, name)
        except ShardsLost as error:
            self._lose(error)  # no step may run on ranks of which some have switched
            raise

    def _stats(self) -> EngineStats:
        core = self._started()
        stats = core.stats()
        if self._lost is not None:
            return stats
        assert isinstance(core.executor, RayExecutor)
        rss = Rss(stats.rss_bytes, stats.peak_rss_bytes).plus(core.executor.rss())
        return replace(stats, rss_bytes=rss.now_bytes, peak_rss_bytes=rss.peak_bytes)

    def _started(self) -> EngineCore:
        assert self._core is not None, "attach comes first"
        return self._core

    def _between_steps(self, call: Callable[[], T]) -> T | Failed:
        """Runs the call on the step thread and waits for it."""
        future: Future[T | Failed] = Future()
        with self._wake:
            if self._stopping:
                raise RuntimeError("the engine was stopped")
            self._commands.append((call, future))
            self._wake.notify()
        return future.result()

    def _loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._stopping or self._commands or self._can_step())
                commands, self._commands = self._commands, deque()
                stopping = self._stopping
            for call, future in commands:
                future.set_result(attempt(call))
            if stopping:
                return
            if self._can_step():
                self._step()

    def _can_step(self) -> bool:
        return self._core is not None and self._lost is None and self._core.has_work

    def _step(self) -> None:
        try:
            deltas = self._started().step()
        except Exception as error:
            log.exception("a step failed; waiting for new shards")
            self._lose(error)
            return
        with self._news:
            is_news = not self._outbox or _any_ended(deltas)
            self._outbox.extend(deltas)
            if is_news:
                self._news.notify_all()

    def _lose(self, error: Exception) -> None:
        with self._news:
            self._lost = str(error) or one_line(error)
            self._news.notify_all()


def _any_ended(deltas: Sequence[Delta]) -> bool:
    return any(delta.finish_reason is not None for delta in deltas)


def _warm_up() -> None:
    import transformers  # noqa: F401

    import smoe.engine.build  # noqa: F401
