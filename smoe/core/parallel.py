"""ParallelConfig: how a model is spread over devices, and which of them exchange what."""

from dataclasses import dataclass
from typing import Literal, get_args

from smoe.core.errors import ConfigError

ScheduleName = Literal["allreduce", "scatter", "speculative"]
SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)
DEFAULT_SCHEDULE: ScheduleName = "scatter"
_ONE = "has no effect on one device: needs tensor_parallel_size of 2 or more"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """`tensor_parallel_size` devices share attention by heads, vocabulary and experts.

    `schedule` says how rows travel between them: `allreduce` (all-reduce, slice, all-to-all, all-gather),
    `scatter` (reduce-scatter instead of the first) or `speculative` (each row to the device whose experts it will
    use, by the tables of `placement`). `placement` is a folder that `smoe regroup` wrote; without it experts lie in
    their order. `capacity_factor` >= 1 bounds the rows that `speculative` may send to one device, over an even share.
    `dedup=False` sends a row once for each of its experts. A collective that takes `timeout_s`, or a process that is
    silent for as long, means a lost device; so does a step of `step_timeout_s`, on one device too.
    """

    tensor_parallel_size: int = 1
    schedule: ScheduleName = DEFAULT_SCHEDULE
    placement: str | None = None
    capacity_factor: float = 1.0
    dedup: bool = True
    timeout_s: float = 60.0
    step_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if self.tensor_parallel_size < 1:
            raise ConfigError("tensor_parallel_size", self.tensor_parallel_size, "integer >= 1")
        if self.schedule not in SCHEDULES:
            raise ConfigError("schedule", self.schedule, f"one of {', '.join(SCHEDULES)}")
        if not 1.0 <= self.capacity_factor <= 1e6:
            raise ConfigError("capacity_factor", self.capacity_factor, "1 or above: 1 is an even share")
        for limit in ("timeout_s", "step_timeout_s"):
            if not 0.0 < getattr(self, limit) < 1e6:
                raise ConfigError(limit, getattr(self, limit), "seconds above 0")
        if self.capacity_factor != 1.0 and self.schedule != "speculative":
            raise ConfigError("capacity_factor", self.capacity_factor, "only with schedule speculative")
        if self.schedule == "speculative" and self.placement is None:
            raise ConfigError("schedule", self.schedule, "needs a placement with tables, as `smoe regroup` writes it")
        if self.size == 1:
            for name, default in (("schedule", DEFAULT_SCHEDULE), ("placement", None), ("dedup", True)):
                if getattr(self, name) != default:
                    raise ConfigError(name, getattr(self, name), _ONE)

    @property
    def size(self) -> int:
        """Devices in all."""
        return self.tensor_parallel_size
