"""Shard: the actor that owns one device: its part of the model, its KV cache and its experts."""

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from smoe.actors.channel import Address, Door
from smoe.actors.outcome import Failed, attempt
from smoe.collectives.world import WorldPlan, free_port
from smoe.core.config import EngineConfig
from smoe.core.model_info import ModelInfo
from smoe.core.step import Executor
from smoe.engine.rss import read_rss

log = logging.getLogger(__name__)

Build = Callable[[EngineConfig, WorldPlan | None], Executor]


@dataclass(frozen=True, slots=True)
class ShardReady:
    info: ModelInfo
    kv_rows: int


class Shard:
    """Everything that touches the model runs on one thread, so that thread pools of kernels exist once.

    Methods are called by Ray on other threads; those that can fail return Failed instead of raising.
    """

    def __init__(self, rank: int, config: EngineConfig, build: Build | None = None) -> None:
        self.rank = rank
        self._config = config
        self._build = build or build_runner
        self._executor: Executor | None = None
        self._model = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._closed = threading.Event()
        if config.threads is not None:
            # Ray sets OMP_NUM_THREADS from the CPUs it was asked for; ours counts the cores that the model may use.
            os.environ["OMP_NUM_THREADS"] = str(config.threads)

    def load(self, world: WorldPlan | None = None) -> ShardReady | Failed:
        """Builds the runner: minutes for a large model. With a `world`, waits for its other ranks to load too."""

        def work() -> ShardReady:
            self._executor = self._build(self._config, world)
            return ShardReady(self._executor.info(), self._executor.kv_rows)

        return self._model.submit(attempt, work).result()

    def open(self, host: str | None = None) -> Address | Failed:
        """Listens for the engine at `host` (default: this node's address), and answers its messages from then on."""
        door = attempt(lambda: Door(host or node_address()))
        if isinstance(door, Failed):
            return door
        self._model.submit(self._serve, door)
        return door.address

    def run(self, method: str, *args: Any) -> Any:
        """One Executor call as a plain actor call; Failed when it raised."""
        return self._model.submit(self._call, method, args).result()

    def address(self) -> tuple[str, int]:
        """Of this shard, should the ranks of its world meet here."""
        return free_address()

    def until_closed(self) -> None:
        """Blocks for the life of this actor: its reference becomes ready when the process dies."""
        self._closed.wait()

    def pid(self) -> int:
        return os.getpid()

    def _serve(self, door: Door) -> None:
        channel = door.accept()
        while True:
            try:
                method, args = channel.receive()
            except (EOFError, OSError):
                return  # the engine closed the link, or died: then this actor is killed or linked anew
            channel.send(self._call(method, args))

    def _call(self, method: str, args: tuple[Any, ...]) -> Any:
        if method == "rss":
            return read_rss()
        assert self._executor is not None, "load comes first"
        member = getattr(self._executor, method)
        return attempt(lambda: member(*args))


def node_address() -> str:
    """The address at which Ray reaches this node, so other actors reach it there too."""
    import ray

    return str(ray.util.get_node_ip_address())


def free_address() -> tuple[str, int]:
    """Where the first shard of a group can listen for the others: this node's address, and a port free just now."""
    host = node_address()
    return host, free_port(host)


def build_runner(config: EngineConfig, world: WorldPlan | None) -> Executor:
    from smoe.engine.build import build_runner
    from smoe.engine.parallel import build_rank_runner

    return build_runner(config) if world is None else build_rank_runner(config, world)
