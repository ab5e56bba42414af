"""ParallelConfig: how a model is spread over devices, and which of them exchange what."""

from dataclasses import dataclass
from typing import Literal, get_args

from smoe.core.errors import ConfigError

ScheduleName = Literal["allreduce", "scatter", "speculative"]
SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)
DEFAULT_SCHEDULE: ScheduleName = "scatter"
RoutingName = Literal["even", "tables"]
ROUTINGS: tuple[RoutingName, ...] = get_args(RoutingName)
Backend = Literal["auto", "sockets", "gloo", "nccl"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
ONE_DEVICE = "has no effect on one device: needs tensor_parallel_size or data_parallel_size of 2 or more"
_ONE_A_GROUP = "has no effect without tensor parallelism: needs tensor_parallel_size of 2 or more"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """`data_parallel_size` groups of `tensor_parallel_size` devices: a group shares attention by heads, vocabulary and
    rows, the experts lie over all devices. Device d is in group d // tensor_parallel_size.

    A request is computed by one group, which keeps its KV rows. `data_parallel_routing` says by which: `even` sends it
    to the group with the least to do, `tables` to the one whose experts its prompt will use, by the tables of
    `placement`; either way any data_parallel_size requests in a row, counted from the first, go to as many groups.
    `schedule` says how rows travel between them: `allreduce` (all-reduce, slice, all-to-all, all-gather),
    `scatter` (reduce-scatter instead of the first) or `speculative` (each row to the device whose experts it will
    use, by the tables of `placement`). `placement` is a folder that `smoe regroup` wrote; without it experts lie in
    their order. `capacity_factor` >= 1 bounds the rows that `speculative` may send to one device, over an even share.
    `dedup=False` sends a row once for each of its experts. Sums over devices are added in the order of devices, so that
    schedules give the same bits in fp32; `deterministic=False` leaves those of `allreduce` to the all-reduce of the
    backend, in an order, and rounded, as it likes. `backend` carries the exchanges: `sockets` (connections of
    our own) or `gloo` between CPUs, `nccl` between CUDA devices; `auto` is the first or the last. A collective that
    takes `timeout_s`, or a process that is silent for as long, means a lost device; so does a step of `step_timeout_s`,
    on one device too.
    """

    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    data_parallel_routing: RoutingName = "even"
    schedule: ScheduleName = DEFAULT_SCHEDULE
    placement: str | None = None
    capacity_factor: float = 1.0
    dedup: bool = True
    deterministic: bool = True
    backend: Backend = "auto"
    timeout_s: float = 60.0
    step_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("tensor_parallel_size", "data_parallel_size"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "integer >= 1")
        if self.schedule not in SCHEDULES:
            raise ConfigError("schedule", self.schedule, f"one of {', '.join(SCHEDULES)}")
        if self.backend not in BACKENDS:
            raise ConfigError("backend", self.backend, f"one of {', '.join(BACKENDS)}")
        self._check_routing()
        if not 1.0 <= self.capacity_factor <= 1e6:
            raise ConfigError("capacity_factor", self.capacity_factor, "1 or above: 1 is an even share")
        for limit in ("timeout_s", "step_timeout_s"):
            if not 0.0 < getattr(self, limit) < 1e6:
                raise ConfigError(limit, getattr(self, limit), "seconds above 0")
        if self.capacity_factor != 1.0 and self.schedule != "speculative":
            raise ConfigError("capacity_factor", self.capacity_factor, "only with schedule speculative")
        if not self.deterministic and self.schedule != "allreduce":
            limit = "only with schedule allreduce: the others have no all-reduce to leave to the backend"
            raise ConfigError("deterministic", self.deterministic, limit)
        if self.schedule == "speculative" and self.placement is None:
            raise ConfigError("schedule", self.schedule, "needs a placement with tables, as `smoe regroup` writes it")
        if self.size == 1:
            for name, default in (
                ("schedule", DEFAULT_SCHEDULE),
                ("placement", None),
                ("dedup", True),
                ("backend", "auto"),
            ):
                if getattr(self, name) != default:
                    raise ConfigError(name, getattr(self, name), ONE_DEVICE)
        if self.tensor_parallel_size == 1 and self.schedule != DEFAULT_SCHEDULE:
            raise ConfigError("schedule", self.schedule, _ONE_A_GROUP)

    @property
    def size(self) -> int:
        """Devices in all."""
        return self.tensor_parallel_size * self.data_parallel_size

    def _check_routing(self) -> None:
        routing = self.data_parallel_routing
        if routing not in ROUTINGS:
            raise ConfigError("data_parallel_routing", routing, f"one of {', '.join(ROUTINGS)}")
        if routing == "even":
            return
        if self.data_parallel_size == 1:
            raise ConfigError("data_parallel_routing", routing, "even with data_parallel_size 1: there is one group")
        if self.placement is None:
            limit = "needs a placement with tables, as `smoe regroup` writes it"
            raise ConfigError("data_parallel_routing", routing, limit)
