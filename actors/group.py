"""The controller's hands: placement group, shard actors and the engine actor of one model, through Ray."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from smoe.actors.controller import (
    Action,
    Attach,
    EngineDied,
    Event,
    FailRequests,
    KillShards,
    Place,
    PlacementReady,
    Release,
    ShardsDied,
    ShardsLoaded,
    StartFailed,
    StartLost,
    StartShards,
)
from smoe.actors.demand import shortage
from smoe.actors.health import HealthPolls
from smoe.actors.links import ATTACH_S, CompiledLink, Link, LinkLimits, SocketLink
from smoe.actors.nodes import living_nodes
from smoe.actors.outcome import Failed, Gone, one_line
from smoe.actors.remote import EngineActor, ShardActor
from smoe.actors.shard import Build, ShardReady
from smoe.collectives.world import WorldPlan
from smoe.core.cluster_config import Strategy
from smoe.core.config import EngineConfig
from smoe.core.errors import CollectiveError, SmoeError, StartupError

log = logging.getLogger(__name__)
EXIT_TIMEOUT_S = 30.0
HEALTH_POLL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """How many shards, what each reserves and where, and how long to wait for room.

    `cpus` None are as many as threads. `build` stands in for smoe.engine.build_runner.
    """

    num_shards: int = 1
    threads: int = 1
    cpus: int | None = None
    gpus: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    strategy: Strategy = "PACK"
    link: Literal["socket", "compiled"] = "socket"
    placement_timeout_s: float = 60.0
    build: Build | None = None

    @property
    def bundle(self) -> dict[str, float]:
        gpus = {"GPU": float(self.gpus)} if self.gpus else {}
        return {"CPU": float(self.cpus or self.threads), **gpus, **self.resources}


class Group:
    """`perform` and `watch` are called by one thread at a time; `engine` may be called from any."""

    def __init__(self, config: EngineConfig, plan: GroupPlan) -> None:
        self._config = replace(config, threads=plan.threads)
        self._plan = plan
        self._placement: PlacementGroup | None = None
        self._shards: list[Any] = []
        self._ready: ShardReady | None = None
        self._generation = 0
        self._watched: dict[Any, str] = {}
        self._health: HealthPolls | None = None
        self.engine: Any = None
        self.error: SmoeError | None = None

    def perform(self, action: Action) -> Event | None:
        match action:
            case Place(generation):
                return self._place(generation)
            case StartShards(generation):
                return self._start_shards(generation)
            case Attach(generation):
                return self._attach(generation)
            case KillShards():
                self._kill_shards()
            case FailRequests(error):
                self.error = error
            case Release():
                self._release()
        return None

    def watch(self, timeout_s: float) -> Event | None:
        """Waits for the death of a process or the loss of the shards; asks now and then whether all still answer."""
        ready, _ = ray.wait(list(self._watched), num_returns=1, timeout=timeout_s)
        if not ready:
            return self._silence()
        name = self._watched.pop(ready[0])
        try:
            cause = ray.get(ready[0])
        except RayError as error:
            cause = f"{name} ended ({one_line(error)})"
            if name == "engine":
                return EngineDied(cause)
        return ShardsDied(self._generation, time.monotonic(), str(cause))

    def _silence(self) -> Event | None:
        name = None if self._health is None else self._health.silent(time.monotonic())
        if name is None:
            return None
        cause = f"{name} has not answered for {self._config.parallel.timeout_s:g} s"
        return EngineDied(cause) if name == "engine" else ShardsDied(self._generation, time.monotonic(), cause)

    def shard_pids(self) -> list[int]:
        pids: list[int] = ray.get([shard.pid.remote() for shard in self._shards])
        return pids

    def kill_shards(self) -> None:
        """From any thread: a load in progress then fails at once."""
        for shard in self._shards:
            ray.kill(shard)

    def _place(self, generation: int) -> Event:
        plan = self._plan
        self._placement = placement_group([plan.bundle] * plan.num_shards, strategy=plan.strategy)
        if (shortage := self._shortage()) is not None:
            return StartFailed(generation, shortage)
        where = PlacementGroupSchedulingStrategy(self._placement, placement_group_bundle_index=0)
        self.engine = EngineActor.options(num_cpus=0, scheduling_strategy=where).remote(self._config)
        return PlacementReady()

    def _shortage(self) -> StartupError | None:
        """None as soon as every shard has its place."""
        plan = self._plan
        assert self._placement is not None
        if self._placement.wait(plan.placement_timeout_s):
            return None
        nodes = living_nodes()
        return StartupError(*shortage(plan.bundle, plan.num_shards, plan.strategy, nodes, plan.placement_timeout_s))

    def _missing(self) -> StartupError | None:
        """None once every shard has started. A node that is gone took its places along, and there may be no others."""
        started = [shard.pid.remote() for shard in self._shards]
        while ray.wait(started, num_returns=len(started), timeout=self._plan.placement_timeout_s)[1]:
            if (shortage := self._shortage()) is not None:
                return shortage
        return None

    def _start_shards(self, generation: int) -> Event:
        self._generation = generation
        plan = self._plan
        self._shards = [
            ShardActor.options(
                num_cpus=plan.bundle["CPU"],
                num_gpus=plan.gpus,
                resources=dict(plan.resources),
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._placement, placement_group_bundle_index=rank
                ),
            ).remote(rank, self._config, plan.build)
            for rank in range(plan.num_shards)
        ]
        if (lost := self._missing()) is not None:
            return StartFailed(generation, lost)
        worlds = self._worlds()
        if isinstance(worlds, Failed):
            return _not_started(generation, worlds)
        loads = {
            shard.load.remote(world): rank for rank, (shard, world) in enumerate(zip(self._shards, worlds, strict=True))
        }
        waiting = list(loads)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1)
            outcome = self._outcome(done[0], f"shard {loads[done[0]]} died while loading")
            if isinstance(outcome, Failed):
                return _not_started(generation, outcome)
            if loads[done[0]] == 0:
                self._ready = outcome
        return ShardsLoaded(generation)

    def _worlds(self) -> Sequence[WorldPlan | None] | Failed:
        """By rank, how it joins the others, once all of them have a place; None for a shard alone."""
        if len(self._shards) == 1:
            return [None]
        addresses = self._outcome([shard.address.remote() for shard in self._shards], "a shard died while starting")
        if isinstance(addresses, Failed):
            return addresses
        hosts, (host, port) = tuple(address[0] for address in addresses), addresses[0]
        parallel = self._config.parallel
        how = {"hosts": hosts, "host": host, "port": port, "timeout_s": parallel.timeout_s, "backend": parallel.backend}
        return [WorldPlan(rank=rank, **how) for rank in range(len(hosts))]

    def _attach(self, generation: int) -> Event | None:
        make_link = self._make_link()
        if isinstance(make_link, Failed):
            return _not_started(generation, make_link)
        attached = self._outcome(self.engine.attach.remote(self._ready, make_link), "the engine died while starting")
        if isinstance(attached, Gone):
            return EngineDied(str(attached.error))
        if isinstance(attached, Failed):
            return _not_started(generation, attached)
        self._watched = {shard.until_closed.remote(): f"shard {rank}" for rank, shard in enumerate(self._shards)}
        self._watched[self.engine.until_lost.remote()] = "engine"
        asks = {f"shard {rank}": shard.pid.remote for rank, shard in enumerate(self._shards)}
        limit_s = self._config.parallel.timeout_s
        every_s = min(HEALTH_POLL_S, limit_s / 4)
        self._health = HealthPolls({"engine": self.engine.pid.remote, **asks}, _is_ready, every_s, limit_s)
        return None

    def _make_link(self) -> Callable[[], Link] | Failed:
        parallel = self._config.parallel
        attach_s = min(ATTACH_S, parallel.timeout_s)
        limits = LinkLimits(step_s=parallel.step_timeout_s, lag_s=parallel.timeout_s, attach_s=attach_s)
        if self._plan.link == "compiled":
            return partial(CompiledLink, self._shards, limits)
        addresses = []
        for rank, shard in enumerate(self._shards):
            address = self._outcome(shard.open.remote(), f"shard {rank} died while starting", limits.attach_s)
            if isinstance(address, Failed):
                return address
            addresses.append(address)
        return partial(SocketLink, addresses, limits)

    def _kill_shards(self) -> None:
        self.kill_shards()
        gone = [ref for ref, name in self._watched.items() if name != "engine"]
        self._watched, self._health = {}, None
        # Memory of the old processes must be free before new ones load.
        ray.wait(gone, num_returns=len(gone), timeout=EXIT_TIMEOUT_S) if gone else None
        self._shards = []

    def _release(self) -> None:
        if self.engine is not None:
            stopped = self._outcome(self.engine.stop.remote(), "the engine had died", EXIT_TIMEOUT_S)
            if isinstance(stopped, Failed):
                log.warning("stopping the engine: %s", stopped.error)
            ray.kill(self.engine)
            self.engine = None
        if self._placement is not None:
            remove_placement_group(self._placement)
            self._placement = None

    def _outcome(self, ref: Any, died: str, timeout_s: float | None = None) -> Any:
        """The method's value or Failed; the death of its process is a Failed too."""
        try:
            return ray.get(ref, timeout=timeout_s)
        except GetTimeoutError:
            return Gone(StartupError(f"{died}, or hangs: no answer in {timeout_s:g} s"))
        except RayError as error:
            return Gone(StartupError(f"{died} ({one_line(error)})"))


def _not_started(generation: int, failed: Failed) -> StartFailed | StartLost:
    """Ranks wait for each other while they load, so the first to tell of a lost one may be another."""
    if isinstance(failed, Gone) or isinstance(failed.error, CollectiveError):
        return StartLost(generation, time.monotonic(), failed.error)
    return StartFailed(generation, failed.error)


def _is_ready(ref: Any) -> bool:
    return bool(ray.wait([ref], timeout=0)[0])
