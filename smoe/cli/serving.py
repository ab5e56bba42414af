"""What `smoe serve` does from its command line to its end: a server in this process, or one by Ray Serve."""

import asyncio
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import uvicorn

from smoe.core.client import EngineClient
from smoe.core.cluster_config import ClusterConfig
from smoe.core.config import EngineConfig
from smoe.core.errors import CapacityError, ConfigError, StartupError
from smoe.server.app import make_app
from smoe.server.config import ServerConfig

if TYPE_CHECKING:
    from smoe.actors.desk import Report
    from smoe.actors.serving import ServePlan, Serving
    from smoe.server.async_engine import AsyncEngine

FAILED = 1
_FLUSH_S = 5.0
_LOOK_S = 0.25
_SWITCH_S = 1e-4
"""How long the engine's thread waits for the interpreter while chunks are sent. With Python's 5 ms it waits for those
of all streams: 0.7 ms a step of 16."""


class _Server(uvicorn.Server):
    """The first signal drains the engine, while new requests are told so; the second ends the server at once."""

    def __init__(self, config: uvicorn.Config, engine: "AsyncEngine") -> None:
        super().__init__(config)
        self._engine = engine
        self._asked = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._captured_signals.append(sig)
        if self._asked or self._engine.phase == "loading":  # nobody has an answer to wait for
            self.should_exit = self.force_exit = True
            return
        self._asked = True
        asyncio.get_running_loop().call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._closing = asyncio.ensure_future(self._engine.close())
        self._closing.add_done_callback(lambda _: self.end())

    def end(self) -> None:
        self.should_exit = True


def listen(open_client: Callable[[], EngineClient], name: str, server: ServerConfig) -> int:
    """Until a signal asks it to end. The exit code: 1 when the model did not load, or its engine failed."""
    sys.setswitchinterval(_SWITCH_S)
    app = make_app(open_client, name, server)
    engine: AsyncEngine = app.state.engine
    with open_door(server) as door:
        say_where(name, server.host, door.getsockname()[1])
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=math.ceil(_FLUSH_S)
        )
        runner = _Server(config, engine)
        engine.on_phase = lambda: runner.end() if engine.phase == "failed" else None
        runner.run(sockets=[door])
    return 0 if engine.failure is None else say_failure(engine.failure, engine.failure_details)


def listen_over_actors(engine: EngineConfig, cluster: ClusterConfig, name: str, server: ServerConfig) -> int:
    """As `listen`, with the engine in Ray actors."""
    from smoe.actors.client import open_ray_client
    from smoe.actors.launch import open_ray
    from smoe.actors.serving import serve_plan

    config, plan = serve_plan(engine, cluster, server)
    # Here, since only the main thread can keep Ray from taking the signals.
    session = open_ray(plan.cpus)
    try:
        return listen(partial(open_ray_client, config, cluster), name, server)
    finally:
        session.close()


def deploy(engine: EngineConfig, cluster: ClusterConfig, name: str, server: ServerConfig) -> int:
    """By Ray Serve, until a signal asks it to end. The exit code: 1 when a replica's model did not load."""
    from smoe.actors.client import open_ray_client
    from smoe.actors.serving import Serving, serve_plan

    config, plan = serve_plan(engine, cluster, server)
    if server.replicas > 1 and engine.parallel.size == 1 and "RAY_ADDRESS" not in os.environ:
        _check_memory(engine, server.replicas)
    app = partial(make_app, partial(open_ray_client, config, cluster), name, server)
    with _Signals() as signals:
        serving = Serving(app, plan)
        try:
            failed = _watch(serving, signals, plan, lambda: say_where(name, server.host, serving.port))
        finally:
            serving.close()
        signals.pass_on()
    return 0 if failed is None else say_failure(failed.failure, failed.details)


def _check_memory(engine: EngineConfig, replicas: int) -> None:
    """Of replicas that are all on this machine; each plans for itself alone. Raises ConfigError or CapacityError."""
    from smoe.engine.plan import plan_memory
    from smoe.models.loading import open_checkpoint

    if engine.expert_memory == "auto":
        raise ConfigError("expert_memory", "auto", f"a size with {replicas} replicas: each would take all that is free")
    plan = plan_memory(open_checkpoint(engine.model), engine)
    needed = replicas * (plan.predicted_peak_rss_bytes - plan.kv_bytes)
    if needed > plan.free_bytes:
        raise CapacityError(f"replicas: {replicas} need {needed:,} bytes (there are {plan.free_bytes:,} free)")


def _watch(serving: "Serving", signals: "_Signals", plan: "ServePlan", say: Callable[[], None]) -> "Report | None":
    """Until all has ended; says when the first replica answers. The report of one that never came to serve, if any."""
    from smoe.actors.desk import Standing, all_closed, standing

    stands: Standing = "starting"
    board = serving.board(-1, 0.0)
    ending_s: float | None = None
    said = False
    while True:
        if board.reports and not said:
            say()
            said = True
        stands = standing(board.reports, plan.replicas, stands)
        if stands == "failed":
            return next(report for report in board.reports.values() if report.phase == "failed")
        if ending_s is not None and (all_closed(board.reports) or time.monotonic() > ending_s):
            return None
        if signals.count and ending_s is None:
            serving.end()
            ending_s = time.monotonic() + plan.drain_s + _FLUSH_S
            if stands == "starting" or serving.lost():
                return None
        try:
            board = serving.board(board.version, _LOOK_S)
        except StartupError:
            if signals.count:  # which went to the processes of a local Ray too
                return None
            raise


class _Signals:
    """Counts the signals that ask for an end; the second is for whoever handled them before."""

    def __init__(self) -> None:
        self.count = 0
        self._first: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_on(self) -> None:
        """To whoever handled it before, now that all has ended."""
        if self._first is not None:
            self.__exit__()
            signal.raise_signal(self._first)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            self.pass_on()
        self._first = number


def open_door(server: ServerConfig) -> socket.socket:
    try:
        return socket.create_server((server.host, server.port), backlog=2048)
    except OSError as error:
        where = f"{server.host}:{server.port}"
        unknown = (error.errno or 0) < 0  # a number of getaddrinfo's, which os.strerror does not know
        field, why = ("host", "no such address here") if unknown else ("port", os.strerror(error.errno or 0))
        raise ConfigError(field, where, f"one to listen on: {why}") from error


def say_where(name: str, host: str, port: int) -> None:
    print(f"{name} at http://{host}:{port}/v1", file=sys.stderr, flush=True)


def say_failure(failure: str, details: str) -> int:
    print(f"error: {failure}", file=sys.stderr)
    if details:
        print(details, file=sys.stderr)
    return FAILED
