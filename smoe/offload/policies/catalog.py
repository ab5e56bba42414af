"""Every policy by name: what it can be told, and how it is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from smoe.offload.policies import arrival, lru, waiting
from smoe.offload.policies.params import Number, Param, Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """`layers` are the MoE layers of the model in ascending order; each has `num_experts`, a token uses `top_k`."""

    layers: tuple[int, ...]
    num_experts: int
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a policy may be made from, beside its own parameters."""

    geometry: Geometry
    seed: int
    future: Any = None


Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """`make` gets a value for every parameter, defaults included; `check` names a parameter and why it cannot be."""

    about: str
    make: Callable[[Values, Context], Any]
    params: Mapping[str, Param] = field(default_factory=dict)
    check: Callable[[Values], tuple[str, str] | None] = lambda values: None
    needs_future: bool = False
    lossy: bool = False


EVICT = {
    "random": Policy(about="any, with equal chance", make=lambda v, c: arrival.RandomChoice(c.seed)),
    "fifo": Policy(about="first in, first out", make=lambda v, c: arrival.FIFO()),
    "lru": Policy(
        about="least recently used",
        params={"prefetch": Word(("touch", "no-touch"))},
        make=lambda v, c: lru.LRU(prefetch_touch=v["prefetch"] == "touch"),
    ),
}
PREFETCH = {"none": Policy(about="nothing ahead of demand", make=lambda v, c: None)}
MISS = {
    "wait": Policy(about="fetch and wait", make=lambda v, c: waiting.Wait()),
    "compute": Policy(about="compute where the weights are", make=lambda v, c: waiting.Compute()),
    "auto": Policy(about="compute there if that is cheaper than fetching", make=lambda v, c: waiting.Auto()),
}
ADMIT = {"always": Policy(about="what is fetched gets a slot", make=lambda v, c: None)}

CATALOG: dict[str, dict[str, Policy]] = {"evict": EVICT, "prefetch": PREFETCH, "miss": MISS, "admit": ADMIT}
DEFAULTS = {"evict": "lru", "prefetch": "none", "miss": "wait", "admit": "always"}
PRESETS: dict[str, str] = {}

__all__ = ["CATALOG", "DEFAULTS", "PRESETS", "Context", "Geometry", "Number", "Policy", "Values", "Word"]
