"""What `smoe simulate serving` simulates: steps measured here, experts that are moved, or devices by their rates."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from smoe.cli.slo_options import listed, whole
from smoe.cli.values import no_effect, number
from smoe.core.errors import ConfigError

if TYPE_CHECKING:
    from smoe.bench.slo.cases import Case

KV_ROWS = "16384"
_OF_DEVICES = ("model_shape", "schedule", "lar", "imbalance", "no_dedup")
_OF_ROUTES = ("expert_memory", "expert_policy", "link", "compute", "expert_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Options as they were given; one of `step_profile`, `trace` and `topology` decides which others have a meaning."""

    step_profile: Path | None
    trace: str | None
    expert_memory: Sequence[str]
    expert_policy: Sequence[str]
    link: str | None
    compute: str | None
    expert_bytes: str | None
    topology: str | None
    model_shape: str | None
    schedule: str | None
    lar: str | None
    imbalance: str | None
    no_dedup: bool
    kv_rows: str | None
    max_num_seqs: str | None
    max_num_batched_tokens: str | None
    seed: int

    def cases(self) -> "list[Case]":
        """Raises ConfigError, TraceError or CapacityError."""
        kinds = [name for name in ("step_profile", "trace", "topology") if getattr(self, name)]
        if len(kinds) != 1:
            limit = (
                "one of --step-profile (measured here), --trace (experts are moved) and --topology (several devices)"
            )
            raise ConfigError("hardware", ", ".join(kinds) or "none", limit)
        for name, kind in (*((n, "topology") for n in _OF_DEVICES), *((n, "trace") for n in _OF_ROUTES)):
            if getattr(self, name) and kind != kinds[0]:
                raise no_effect(name, getattr(self, name), f"--{kind}")
        if self.topology and self.kv_rows:
            raise ConfigError("kv_rows", self.kv_rows, "not with --topology, whose devices' memory decides")
        return {"step_profile": self._measured, "trace": self._offloaded, "topology": self._devices}[kinds[0]]()

    def described(self) -> dict[str, object]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items() if value}

    def _measured(self) -> "list[Case]":
        from smoe.bench.slo.cases import Case
        from smoe.sim.serving.cost import ByLoad, StepCost
        from smoe.sim.serving.curve import Engine
        from smoe.sim.serving.fitted import StepProfile, fit
        from smoe.sim.serving.front import BehindFront, fit_front

        assert self.step_profile is not None
        profile = StepProfile.read(self.step_profile)
        name, cost = str(profile.setting.get("model", self.step_profile.stem)), ByLoad(fit(profile).cost)
        costs: dict[str, StepCost] = {name: cost}
        if profile.front:
            costs[f"{name} over HTTP"] = BehindFront(cost, fit_front(profile.front))

        def engine(cost: StepCost) -> Engine:
            return Engine(make_cost=lambda: cost, kv_rows=self._kv_rows(), **self._limits())

        return [Case(name, engine(cost)) for name, cost in costs.items()]

    def _offloaded(self) -> "list[Case]":
        from smoe.bench.slo.cases import Case
        from smoe.core.link_model import LinkModel
        from smoe.core.packaged_traces import expert_bytes_of, open_trace
        from smoe.sim.compute import ComputeModel
        from smoe.sim.serving.curve import Engine
        from smoe.sim.serving.offloaded import OffloadedCost
        from smoe.sim.units import byte_count

        assert self.trace is not None
        if self.link is None or self.compute is None:
            raise ConfigError("trace", self.trace, "--link and --compute with it: what moving and computing take")
        given = self.expert_bytes
        size = expert_bytes_of(self.trace) if given is None else int(byte_count("expert_bytes", given))
        if size is None or size < 1:
            raise ConfigError("expert_bytes", given, "the size of one expert, above zero")
        link, compute = LinkModel.parse(self.link), ComputeModel.parse(self.compute)
        routes = open_trace(self.trace)

        def engine(policy: str, memory: str) -> Engine:
            def cost() -> OffloadedCost:
                return OffloadedCost(
                    routes, policy, memory, link=link, expert_bytes=size, compute=compute, seed=self.seed
                )

            cost()  # refuses what cannot be, before any has run
            return Engine(make_cost=cost, kv_rows=self._kv_rows(), **self._limits())

        return [
            Case(f"{memory}, {policy}", engine(policy, memory))
            for memory in self.expert_memory or ("25%",)
            for policy in self.expert_policy or ("evict=lru",)
        ]

    def _devices(self) -> "list[Case]":
        from smoe.bench.slo.cases import Case
        from smoe.core.topology_file import open_topology
        from smoe.sim.serving.cost import ByLoad
        from smoe.sim.serving.curve import Engine
        from smoe.sim.serving.devices import DeviceCost, Routing
        from smoe.sim.serving.shape import open_shape

        assert self.topology is not None
        if self.model_shape is None:
            raise ConfigError("topology", self.topology, "--model-shape with it: whose steps they are")
        topology, shape = open_topology(self.topology), open_shape(self.model_shape)
        schedules = listed("schedule", self.schedule or "allreduce,scatter")
        lar, imbalance = number("lar", self.lar), number("imbalance", self.imbalance)
        if lar is None and "speculative" in schedules:
            raise ConfigError("schedule", "speculative", "--lar with it: the local activation rate of its placement")
        if lar is not None and "speculative" not in schedules:
            raise no_effect("lar", lar, "--schedule speculative")

        def case(schedule: str) -> Case:
            local = lar if schedule == "speculative" and lar is not None else 1 / topology.num_devices
            routing = Routing(
                schedule=schedule,  # type: ignore[arg-type]  # Routing refuses others
                lar=local,
                imbalance=1.0 if imbalance is None else imbalance,
                dedup=not self.no_dedup,
            )
            device = DeviceCost(topology, shape, routing)
            cost = ByLoad(device)
            return Case(schedule, Engine(make_cost=lambda: cost, kv_rows=device.kv_rows, **self._limits()))

        return [case(schedule) for schedule in schedules]

    def _kv_rows(self) -> int:
        return whole("kv_rows", self.kv_rows or KV_ROWS)

    def _limits(self) -> dict[str, int]:
        given = {"max_num_seqs": self.max_num_seqs, "max_num_batched_tokens": self.max_num_batched_tokens}
        return {name: whole(name, text) for name, text in given.items() if text is not None}
