"""The controller's hands: placement group, shard actors and the engine actor of one model, through Ray."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    StartShards,
)
from smoe.actors.links import CompiledLink, Link, SocketLink
from smoe.actors.outcome import Failed, one_line
from smoe.actors.remote import EngineActor, ShardActor
from smoe.actors.shard import Build, ShardReady
from smoe.collectives.world import WorldPlan
from smoe.core.config import EngineConfig
from smoe.core.errors import SmoeError, StartupError

log = logging.getLogger(__name__)
EXIT_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """How many shards, what each reserves, and how long to wait for room.

    `build` stands in for smoe.engine.build_runner.
    """

    num_shards: int = 1
    threads: int = 1
    link: Literal["socket", "compiled"] = "socket"
    placement_timeout_s: float = 60.0
    build: Build | None = None

    @property
    def bundle(self) -> dict[str, float]:
        return {"CPU": float(self.threads)}


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
        """Waits for the death of a process or the loss of the shards."""
        ready, _ = ray.wait(list(self._watched), num_returns=1, timeout=timeout_s)
        if not ready:
            return None
        name = self._watched.pop(ready[0])
        try:
            cause = ray.get(ready[0])
        except RayError as error:
            cause = f"{name} ended ({one_line(error)})"
            if name == "engine":
                return EngineDied(cause)
        return ShardsDied(self._generation, time.monotonic(), str(cause))

    def shard_pids(self) -> list[int]:
        pids: list[int] = ray.get([shard.pid.remote() for shard in self._shards])
        return pids

    def kill_shards(self) -> None:
        """From any thread: a load in progress then fails at once."""
        for shard in self._shards:
            ray.kill(shard)

    def _place(self, generation: int) -> Event:
        plan = self._plan
        self._placement = placement_group([plan.bundle] * plan.num_shards, strategy="PACK")
        if not self._placement.wait(plan.placement_timeout_s):
            have = {name: count for name, count in ray.cluster_resources().items() if name in plan.bundle}
            wanted = f"{plan.num_shards} x {plan.bundle}"
            limit = f"the cluster has {have}; waited {plan.placement_timeout_s:g} s"
            return StartFailed(generation, StartupError(f"placement: no room for {wanted} ({limit})"))
        where = PlacementGroupSchedulingStrategy(self._placement, placement_group_bundle_index=0)
        self.engine = EngineActor.options(num_cpus=0, scheduling_strategy=where).remote(self._config)
        return PlacementReady()

    def _start_shards(self, generation: int) -> Event:
        self._generation = generation
        plan = self._plan
        self._shards = [
            ShardActor.options(
                num_cpus=plan.threads,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._placement, placement_group_bundle_index=rank
                ),
            ).remote(rank, self._config, plan.build)
            for rank in range(plan.num_shards)
        ]
        worlds = self._worlds()
        if isinstance(worlds, Failed):
            return StartFailed(generation, worlds.error)
        loads = {
            shard.load.remote(world): rank for rank, (shard, world) in enumerate(zip(self._shards, worlds, strict=True))
        }
        waiting = list(loads)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1)
            outcome = self._outcome(done[0], f"shard {loads[done[0]]} died while loading")
            if isinstance(outcome, Failed):
                return StartFailed(generation, outcome.error)
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
        limit_s = self._config.parallel.timeout_s
        return [
            WorldPlan(rank=rank, hosts=hosts, host=host, port=port, timeout_s=limit_s) for rank in range(len(hosts))
        ]

    def _attach(self, generation: int) -> Event | None:
        make_link = self._make_link()
        if isinstance(make_link, Failed):
            return StartFailed(generation, make_link.error)
        attached = self._outcome(self.engine.attach.remote(self._ready, make_link), "the engine died while starting")
        if isinstance(attached, Failed):
            return StartFailed(generation, attached.error)
        self._watched = {shard.until_closed.remote(): f"shard {rank}" for rank, shard in enumerate(self._shards)}
        self._watched[self.engine.until_lost.remote()] = "engine"
        return None

    def _make_link(self) -> Callable[[], Link] | Failed:
        if self._plan.link == "compiled":
            return partial(CompiledLink, self._shards)
        addresses = []
        for rank, shard in enumerate(self._shards):
            address = self._outcome(shard.open.remote(), f"shard {rank} died while starting")
            if isinstance(address, Failed):
                return address
            addresses.append(address)
        return partial(SocketLink, addresses)

    def _kill_shards(self) -> None:
        self.kill_shards()
        gone = [ref for ref, name in self._watched.items() if name != "engine"]
        self._watched = {}
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
            return Failed(StartupError(f"{died}, or hangs: no answer in {timeout_s:g} s"))
        except RayError as error:
            return Failed(StartupError(f"{died} ({one_line(error)})"))
