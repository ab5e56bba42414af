"""ClusterConfig: what each shard of a model reserves in a Ray cluster, and where the shards may lie."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from smoe.core.errors import ConfigError

Strategy = Literal["PACK", "STRICT_PACK", "SPREAD"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Shards start all or none. PACK puts them on few nodes, STRICT_PACK on one, SPREAD on many.

    A shard reserves `cpus` (None: its threads), `gpus` (None: one where the device is cuda) and so much of each of
    the cluster's custom `resources`. A start that finds no room within `placement_timeout_s` fails.
    """

    strategy: Strategy = "PACK"
    cpus: int | None = None
    gpus: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    placement_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError("strategy", self.strategy, f"one of {', '.join(STRATEGIES)}")
        for name, low in (("cpus", 1), ("gpus", 0)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(name, value, f"integer >= {low}")
        for name, amount in self.resources.items():
            if name in ("CPU", "GPU", "memory"):
                raise ConfigError(f"resources.{name}", amount, "a custom resource; cpus and gpus have fields")
            if not 0.0 < amount < 1e9:
                raise ConfigError(f"resources.{name}", amount, "above 0")
        if not 0.0 < self.placement_timeout_s < 1e6:
            raise ConfigError("placement_timeout_s", self.placement_timeout_s, "seconds above 0")
