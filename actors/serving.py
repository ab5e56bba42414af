"""A served model on Ray Serve: one ingress deployment whose replicas have an engine in actors each."""

import asyncio
import contextlib
import logging
import math
import os
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import ray
from ray import serve
from ray.exceptions import RayError

from smoe.actors.client import group_plan, usable_cores
from smoe.actors.desk import Board, Report
from smoe.actors.launch import RaySession, open_ray
from smoe.actors.outcome import one_line
from smoe.actors.remote import DeskActor
from smoe.actors.serve_settings import GENERAL, Door, listens_itself, of_actors
from smoe.core.cluster_config import ClusterConfig
from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError, StartupError
from smoe.core.serve_config import ServeConfig

APP = "smoe"
_HEALTH_PERIOD_S, _HEALTH_TIMEOUT_S = 2.0, 30.0
_EXIT_S = 10.0
_SPARE_REQUESTS = 64  # that the app refuses, or that ask for no answer
_KNOCK_S = 0.05
_LOGGING = {"enable_access_log": False, "log_level": "WARNING"}


class ServedEngine(Protocol):
    """What a replica needs of the engine behind its app; smoe.server.async_engine has it."""

    @property
    def phase(self) -> str: ...

    failure: str | None
    failure_details: str
    on_phase: Callable[[], None]

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """`max_requests` reach a replica at the same time at most, so it has to be above what the app itself takes: others
    wait in Ray Serve. `cpus` are what the shards of all replicas reserve."""

    host: str
    port: int
    replicas: int
    max_requests: int
    drain_s: float
    cpus: int


class Serving:
    """Deploys what `make_app` makes when called in each replica: an ASGI app with a ServedEngine as `state.engine`.

    Raises ConfigError where the port, or Ray Serve on the cluster, is taken, and StartupError.
    """

    def __init__(self, make_app: Callable[[], Any], plan: ServePlan) -> None:
        for name, value in GENERAL.items():
            os.environ.setdefault(name, value)
        self._session: RaySession = open_ray(plan.cpus)
        self._started = False
        try:
            self.port = _free(plan)
            _check_not_running()
            self._desk: Any = DeskActor.remote()
            self._start(make_app, plan)
        except BaseException:
            self.close()
            raise

    def board(self, seen: int, timeout_s: float) -> Board:
        """As Desk has it. Raises StartupError when the desk is gone, and the cluster with it."""
        board: Board = self._ask(self._desk.board.remote(seen, timeout_s))
        return board

    def end(self) -> None:
        """Asks all replicas to take no more, and to end what is in flight. Does not wait for them."""
        self._desk.end.remote()

    def lost(self) -> bool:
        """Whether a signal has ended the local Ray too; after one, waits for a moment to see."""
        return self._session.lost()

    def close(self) -> None:
        """Ends everything that was started here. Idempotent."""
        if self._started and not self._session.local and not self._session.lost():
            with contextlib.suppress(RayError):
                serve.shutdown()
        self._started = False
        self._session.close()

    def _start(self, make_app: Callable[[], Any], plan: ServePlan) -> None:
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        self._started = True
        try:
            local = self._session.local
            door = (plan.host, self.port) if listens_itself(plan.replicas, os.environ, local=local) else None
            env = {"runtime_env": {"env_vars": of_actors(os.environ, door, local=local)}}
            serve.start(
                proxy_location="HeadOnly",
                http_options={"host": plan.host, "port": self.port if door is None else _bound(plan.host, 0)},
                logging_config=_LOGGING,
                controller_options=env,
            )
            # Not waiting for the replicas, of which the desk tells sooner.
            target = serve.RunTarget(_application(make_app, self._desk, plan, env, door), name=APP, route_prefix="/")
            serve.run_many([target], wait_for_applications_running=False)
        except (RayError, RuntimeError, TimeoutError) as error:
            raise StartupError(f"Ray Serve did not start ({one_line(error)})") from error

    def _ask(self, question: Any) -> Any:
        try:
            return ray.get(question)
        except RayError as error:
            raise StartupError(f"the cluster is gone ({one_line(error)})") from error


def serve_plan(config: EngineConfig, cluster: ClusterConfig, server: ServeConfig) -> tuple[EngineConfig, ServePlan]:
    """Threads are shared out where all replicas will be on this machine."""
    local = os.environ.get("RAY_ADDRESS") is None and not ray.is_initialized()
    shards = config.parallel.size * server.replicas
    if local and config.threads is None and cluster.cpus is None:
        config = replace(config, threads=max(1, usable_cores() // shards))
    cpus = math.ceil(shards * group_plan(config, cluster).bundle["CPU"])
    plan = ServePlan(
        host=server.host,
        port=server.port,
        replicas=server.replicas,
        max_requests=2 * server.max_queue + _SPARE_REQUESTS,
        drain_s=server.drain_s,
        cpus=cpus,
    )
    return config, plan


def _check_not_running() -> None:
    if serve.status().proxies:
        limit = "none: it has one address to listen on, and is ended by `serve shutdown`"
        raise ConfigError("Ray Serve", "runs on this cluster already", limit)


def _free(plan: ServePlan) -> int:
    """The port to listen on, checked where that is this node: Ray Serve tries a taken one for minutes."""
    head = ray.get_runtime_context().gcs_address.rpartition(":")[0]
    if head != ray.util.get_node_ip_address():
        return plan.port
    try:
        return _bound(plan.host, plan.port)
    except OSError as error:
        where = f"{plan.host}:{plan.port}"
        raise ConfigError("port", where, f"one to listen on: {os.strerror(error.errno or 0)}") from error


def _bound(host: str, port: int) -> int:
    """The port that could be listened on; 0 takes any."""
    with socket.create_server((host, port)) as door:
        return int(door.getsockname()[1])


def _application(
    make_app: Callable[[], Any], desk: Any, plan: ServePlan, env: dict[str, Any], door: Door | None
) -> Any:
    # A function of its own, since Ray Serve calls only those in the replica.
    def build() -> Any:
        return make_app()

    ingress = serve.ingress(build)(Replica)
    deployment = serve.deployment(
        ingress,
        name="ingress",
        num_replicas=plan.replicas,
        ray_actor_options={"num_cpus": 0, **env},
        max_ongoing_requests=plan.max_requests,
        health_check_period_s=_HEALTH_PERIOD_S,
        health_check_timeout_s=_HEALTH_TIMEOUT_S,
        graceful_shutdown_timeout_s=plan.drain_s + _EXIT_S,
        graceful_shutdown_wait_loop_s=0.1,
        logging_config=_LOGGING,
    )
    return deployment.bind(desk, door)


class Replica:
    """Tells the desk how its engine is, and ends it when the desk says so. A replica whose engine has failed is
    replaced by Ray Serve; one whose desk is gone, with the process that deployed it, drains and ends the deployment.
    With a `door`, Ray Serve has it listen there itself."""

    app: Any  # set by Ray Serve

    async def __init__(self, desk: Any, door: Door | None = None) -> None:  # type: ignore[misc]
        self._desk, self._door = desk, door
        self._name = uuid.uuid4().hex
        # Runs when Ray Serve has made the app, right after this.
        self._heeding = asyncio.ensure_future(self._heed())

    def check_health(self) -> None:
        engine = self._engine()
        if engine.phase == "failed":
            raise RuntimeError(engine.failure)

    async def _heed(self) -> None:
        engine = self._engine()
        await self._opened()
        engine.on_phase = self._report
        self._report()
        # Gone is also whoever would end the deployment, as when a job is stopped while it drains, or right after.
        with contextlib.suppress(RayError):
            while not await self._desk.until_ending.remote(self._name):
                pass
        await engine.close()
        with contextlib.suppress(RayError):
            await self._desk.stay.remote()
        await asyncio.to_thread(serve.shutdown)

    async def _opened(self) -> None:
        """Until its door is open, which Ray Serve opens when it has made the app."""
        while self._door is not None:
            try:
                _, writer = await asyncio.open_connection(*self._door)
            except OSError:
                await asyncio.sleep(_KNOCK_S)
            else:
                writer.close()
                return

    def _report(self) -> None:
        engine = self._engine()
        self._desk.report.remote(self._name, Report(engine.phase, engine.failure or "", engine.failure_details))

    def _engine(self) -> ServedEngine:
        engine: ServedEngine = self.app.state.engine
        return engine
