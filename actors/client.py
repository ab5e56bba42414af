"""RayClient: an EngineClient whose engine is a group of actors."""

import functools
import logging
import math
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import ray
from ray.exceptions import GetTimeoutError, RayError

from smoe.actors.controller import Begin, Controller, GroupState, RestartLimits, Stop
from smoe.actors.group import Group, GroupPlan
from smoe.actors.launch import RaySession, open_ray
from smoe.actors.outcome import one_line, unwrap
from smoe.core.client import EngineHealth
from smoe.core.cluster_config import ClusterConfig
from smoe.core.config import EngineConfig
from smoe.core.errors import RequestError, StartupError
from smoe.core.model_info import ModelInfo
from smoe.core.placement_file import read_placement
from smoe.core.request import Delta, FinishReason, Request, Usage
from smoe.core.stats import EngineStats
from smoe.core.step import ExpertsMoved
from smoe.engine.texts import Texts

log = logging.getLogger(__name__)

# A poll at the engine ends at least this often, so that one abandoned by its client frees its thread.
_LONG_POLL_S = 5.0
_WATCH_S = 0.5


class RayClient:
    """Starts the actors when made, and keeps them running: lost shards are replaced while requests wait.

    Raises StartupError, or the error that kept the model from loading. One poll is always on its way to the
    engine, so that deltas travel as soon as they exist.
    """

    def __init__(self, config: EngineConfig, plan: GroupPlan, limits: RestartLimits | None = None) -> None:
        self._session: RaySession = open_ray(math.ceil(plan.num_shards * plan.bundle["CPU"]))
        self._group = Group(config, plan)
        self._controller = Controller(self._group, limits or RestartLimits())
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="controller", daemon=True)
        self._in_flight: dict[str, Usage] = {}
        self._lock = threading.Lock()  # of `_in_flight`
        self._polling = threading.Lock()  # held for a whole poll
        self._poll: Any = None
        # Here and not in the engine's process, where it would cost each prompt a call and the steps their interpreter.
        reader = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._reading = reader.submit(_texts_of, config.model)
        reader.shutdown(wait=False)
        try:
            state = self._controller.handle(Begin())
            if state.error is not None:
                raise state.error
            self._info: ModelInfo = ray.get(self._group.engine.info.remote())
        except BaseException:
            self.shutdown()
            raise
        self._watcher.start()

    def info(self) -> ModelInfo:
        self._check_open()
        return self._info

    def submit(self, requests: Sequence[Request]) -> None:
        self._check_open()
        batch = tuple(requests)
        new = {r.request_id: Usage(len(r.prompt_token_ids), 0) for r in batch}
        with self._lock:
            for request_id in new.keys() & self._in_flight.keys():
                raise RequestError("request_id", request_id, "unique among requests in flight")
            self._in_flight.update(new)  # before the engine has them, since a delta may be faster than its answer
        try:
            unwrap(self._call("submit", batch))
        except BaseException as error:
            with self._lock:
                for request_id in new:
                    self._in_flight.pop(request_id, None)
            if not isinstance(error, RequestError) and self._group.error is None:
                # The call was lost or taken back, as Ray Serve does when a client leaves; the engine may have them.
                self._group.engine.abort.remote(tuple(new))
            raise

    def abort(self, request_ids: Sequence[str]) -> None:
        self._check_open()
        unwrap(self._call("abort", tuple(request_ids)))

    def poll(self, timeout_s: float | None = None) -> list[Delta]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._polling:
            self._check_open()
            while True:
                if self._closing.is_set():
                    return self._end_all("abort", None)
                if self._group.error is not None:
                    return self._end_all("error", str(self._group.error))
                with self._lock:
                    if not self._in_flight:
                        return []
                left = _WATCH_S if deadline is None else min(_WATCH_S, max(0.0, deadline - time.monotonic()))
                deltas = self._try_poll(left)
                if known := self._account(deltas):
                    return known
                if deadline is not None and time.monotonic() >= deadline:
                    return []

    def decode_text(self, token_ids: Sequence[int]) -> str | None:
        return self._texts().decode(token_ids)

    def encode_text(self, text: str) -> list[int]:
        return self._texts().encode(text)

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return self._texts().encode_chat(messages)

    def stats(self) -> EngineStats:
        stats: EngineStats = unwrap(self._call("stats"))
        return stats

    def resize_experts(self, memory: str) -> int:
        slots: int = unwrap(self._call("resize_experts", memory))
        return slots

    def apply_placement(self, folder: str) -> ExpertsMoved:
        moved: ExpertsMoved = unwrap(self._call("apply_placement", read_placement(folder), folder))
        return moved

    def health(self) -> EngineHealth:
        self._check_open()
        return health_of(self._controller.state)

    def state(self) -> GroupState:
        """Of the group of shards: its phase, and the losses so far."""
        return self._controller.state

    def shard_pids(self) -> list[int]:
        return self._group.shard_pids()

    def engine_pid(self) -> int:
        pid: int = self._call("pid")
        return pid

    def shutdown(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        if self._session.lost():
            self._session.close()
            return
        if self._watcher.is_alive():
            if self._controller.state.phase != "running":
                self._group.kill_shards()  # ends a load that would otherwise be waited for
            self._watcher.join()
        self._controller.handle(Stop())
        with self._polling:  # a poll on another thread has by now seen its engine go
            self._session.close()

    def _texts(self) -> Texts:
        self._check_open()
        return self._reading.result() if self._info.has_tokenizer else Texts(None)

    def _call(self, method: str, *args: Any) -> Any:
        self._check_open()
        if self._group.error is not None:
            raise self._group.error
        try:
            return ray.get(getattr(self._group.engine, method).remote(*args))
        except RayError as error:
            raise StartupError(f"the engine process died ({one_line(error)})") from error

    def _try_poll(self, timeout_s: float) -> list[Delta]:
        if self._poll is None:
            self._poll = self._group.engine.poll.remote(_LONG_POLL_S)
        try:
            deltas: list[Delta] = ray.get(self._poll, timeout=timeout_s)
        except GetTimeoutError:
            return []
        except RayError:
            # The controller's watch sees this too, and says why.
            self._poll = None
            self._closing.wait(_WATCH_S)
            return []
        self._poll = self._group.engine.poll.remote(_LONG_POLL_S)
        return deltas

    def _account(self, deltas: list[Delta]) -> list[Delta]:
        """Those of requests in flight: of others nobody knows, since their submission failed."""
        known = []
        with self._lock:
            for delta in deltas:
                usage = self._in_flight.get(delta.request_id)
                if usage is None:
                    continue
                known.append(delta)
                if delta.finish_reason is not None:
                    del self._in_flight[delta.request_id]
                else:
                    counted = usage.completion_tokens + len(delta.token_ids)
                    self._in_flight[delta.request_id] = Usage(usage.prompt_tokens, counted)
        return known

    def _end_all(self, reason: FinishReason, error: str | None) -> list[Delta]:
        """Last deltas for everything in flight, when the engine will not send them any more."""
        with self._lock:
            ended, self._in_flight = self._in_flight, {}
        return [
            Delta(request_id=request_id, text="", token_ids=(), finish_reason=reason, usage=usage, error=error)
            for request_id, usage in ended.items()
        ]

    def _watch(self) -> None:
        while not self._closing.is_set():
            event = self._group.watch(_WATCH_S)
            if event is not None and not self._closing.is_set():
                log.warning("%s", event)
                self._controller.handle(event)

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise RuntimeError("the engine has been shut down")


@functools.cache
def _texts_of(folder: str) -> Texts:
    from smoe.engine.tokenizer import load_tokenizer
    from smoe.models.loading import model_folder

    return Texts(load_tokenizer(model_folder(folder)))


def health_of(state: GroupState) -> EngineHealth:
    """Of a group that has started once."""
    if state.phase == "running":
        return EngineHealth("running")
    if state.error is not None:
        return EngineHealth("failed", str(state.error))
    return EngineHealth("restarting", f"start {state.generation}, after: {state.cause}")


def open_ray_client(config: EngineConfig, cluster: ClusterConfig | None = None) -> RayClient:
    """The model of `config` in actors, one a device. Raises as RayClient does."""
    cluster, size = cluster or ClusterConfig(), config.parallel.size
    if size > 1:
        from smoe.engine.parallel import check_parallel
        from smoe.models.loading import open_checkpoint

        # Before any worker starts: what no worker could load.
        check_parallel(open_checkpoint(config.model), config)
    return RayClient(config, group_plan(config, cluster))


def group_plan(config: EngineConfig, cluster: ClusterConfig) -> GroupPlan:
    """Threads of a shard: as configured, as many as the CPUs it reserves, or its part of this machine's cores."""
    size = config.parallel.size
    gpus = cluster.gpus
    return GroupPlan(
        num_shards=size,
        threads=config.threads or cluster.cpus or max(1, usable_cores() // size),
        cpus=cluster.cpus,
        gpus=int(config.device == "cuda") if gpus is None else gpus,
        resources=dict(cluster.resources),
        strategy=cluster.strategy,
        placement_timeout_s=cluster.placement_timeout_s,
    )


def usable_cores() -> int:
    """Physical cores, as far as this process may run on them: what kernels get out of hyper-threads is little."""
    physical = psutil.cpu_count(logical=False) or 1
    return max(1, min(physical, len(os.sched_getaffinity(0))))
