"""RegroupConfig: everything that decides how experts are regrouped, checked when it is made; from YAML, too."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from smoe.core.errors import ConfigError
from smoe.core.yaml_file import read_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupConfig:
    """`trace` is a route trace or the name of a packaged one; or `load` a table of loads (`load_name` where the file
    holds several), which has no tokens, so that only load is balanced.

    Either `devices` with equally many experts each, or `slots_of_device`. `solver` and its options by their names in
    smoe.clustering.solvers; `theta` and `max_load` as in its Balance, None for no limit. `heldout` is the share of
    sequences that judge. `replicas` more slots a device are filled with copies of hot experts. With a `topology`
    (a name or a YAML file) clusters go to the devices where traffic is cheap.

    `model` checks that the trace is its own, and gives the vocabulary, the router's groups and the embedding by which
    unseen ids are placed; `vocab_size` and `router_groups` tell what there is of it without.
    """

    trace: str | None = None
    load: str | None = None
    load_name: str | None = None
    devices: int | None = None
    slots_of_device: tuple[int, ...] | None = None
    solver: str = "cross-entropy"
    solver_options: Mapping[str, Any] = field(default_factory=dict)
    theta: float = 0.001
    max_load: float | None = 1.35
    heldout: float = 0.2
    seed: int = 0
    replicas: int = 0
    topology: str | None = None
    model: str | None = None
    vocab_size: int | None = None
    router_groups: int | None = None

    def __post_init__(self) -> None:
        if (self.trace is None) == (self.load is None):
            raise ConfigError("trace", self.trace, "a trace, or a table of loads instead")
        if (self.devices is None) == (self.slots_of_device is None):
            raise ConfigError("devices", self.devices, "a number of devices, or slots_of_device instead")
        if self.slots_of_device is not None and (not self.slots_of_device or min(self.slots_of_device) < 1):
            raise ConfigError("slots_of_device", list(self.slots_of_device), "1 or more each")
        for name in ("devices", "vocab_size", "router_groups"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(name, value, "1 or more")
        for name in ("seed", "replicas"):
            if getattr(self, name) < 0:
                raise ConfigError(name, getattr(self, name), "0 or more")
        if not 0.0 < self.theta < 1.0:
            raise ConfigError("theta", self.theta, "above 0, below 1")
        if self.max_load is not None and not 1.0 <= self.max_load < float("inf"):
            raise ConfigError("max_load", self.max_load, "1 or more, or none")
        if not 0.0 < self.heldout < 1.0:
            raise ConfigError("heldout", self.heldout, "above 0, below 1")
        if self.load is None and self.load_name is not None:
            raise ConfigError("load_name", self.load_name, "has no effect without load")
        if self.load is not None:
            for name in ("model", "vocab_size", "topology"):
                if getattr(self, name) is not None:
                    raise ConfigError(name, getattr(self, name), "has no effect on a table of loads: it needs a trace")
        if self.model is not None:
            for name in ("vocab_size", "router_groups"):
                if getattr(self, name) is not None:
                    raise ConfigError(name, getattr(self, name), f"has no effect with model: {self.model} tells it")

    def slots(self, num_experts: int) -> tuple[int, ...]:
        """Experts of a layer on each device. Raises ConfigError where they do not come out."""
        if self.slots_of_device is not None:
            if sum(self.slots_of_device) != num_experts:
                limit = f"{num_experts} experts in all, not {sum(self.slots_of_device)}"
                raise ConfigError("slots_of_device", list(self.slots_of_device), limit)
            return self.slots_of_device
        assert self.devices is not None
        if num_experts % self.devices:
            legal = [n for n in range(1, num_experts + 1) if num_experts % n == 0]
            below = max((n for n in legal if n < self.devices), default=None)
            above = min((n for n in legal if n > self.devices), default=None)
            near = " or ".join(str(n) for n in (below, above) if n is not None)
            limit = f"{num_experts} experts are divided by {near}; for uneven groups give slots_of_device"
            raise ConfigError("devices", self.devices, limit)
        return (num_experts // self.devices,) * self.devices

    def as_json(self) -> dict[str, Any]:
        plain = asdict(self)
        return plain | {"solver_options": dict(self.solver_options), "slots_of_device": _listed(self.slots_of_device)}


_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("trace", "load", "load_name", "solver", "topology", "model"), (str,)),
    **dict.fromkeys(("devices", "seed", "replicas", "vocab_size", "router_groups"), (int,)),
    **dict.fromkeys(("theta", "max_load", "heldout"), (int, float)),
    "slots_of_device": (list,),
    "solver_options": (dict,),
}
_WORDS = {str: "text", int: "an integer", float: "a number", list: "a list of integers", dict: "a mapping"}


def read_regroup_fields(path: str | Path) -> dict[str, Any]:
    """The fields that a YAML file sets, for a RegroupConfig. Raises ConfigError naming file, field and what fits."""
    raw = read_yaml(path)
    names = [each.name for each in fields(RegroupConfig)]
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}", raw, f"a mapping of {', '.join(names)}")
    for name, value in raw.items():
        if name not in names:
            raise ConfigError(f"{path}: {name}", value, f"no such field; one of {', '.join(names)}")
        fits = isinstance(value, _TYPES[name]) and not isinstance(value, bool)
        if name == "slots_of_device" and fits:
            fits = all(type(slots) is int for slots in value)
        if not fits and not (value is None and name == "max_load"):
            raise ConfigError(f"{path}: {name}", value, _WORDS[_TYPES[name][-1]])
    if "slots_of_device" in raw:
        raw["slots_of_device"] = tuple(raw["slots_of_device"])
    return dict(raw)


def _listed(slots: tuple[int, ...] | None) -> list[int] | None:
    return None if slots is None else list(slots)
