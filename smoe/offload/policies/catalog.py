"""Every policy by name: what it can be told, and how it is made."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from smoe.core.errors import ConfigError
from smoe.core.route_trace import read_route_trace
from smoe.offload.policies import arrival, frequency, lru, waiting
from smoe.offload.policies.admission import Background
from smoe.offload.policies.balance import OBJECTIVES
from smoe.offload.policies.belady import Belady
from smoe.offload.policies.gate import GateLookahead
from smoe.offload.policies.least_stale import LeastStaleByLayer, LeastStaleFIFO
from smoe.offload.policies.levels import UtilityLevels, UtilityPrefetch
from smoe.offload.policies.oracle import Oracle
from smoe.offload.policies.params import File, Number, Param, Word
from smoe.offload.policies.protocols import Eviction
from smoe.offload.policies.substitute import Rule, Substitute
from smoe.offload.policies.table_prefetch import FollowerPrefetch, TokenPrefetch
from smoe.offload.policies.tables import RouteTables
from smoe.offload.policies.utility import SMOOTHING, Utility
from smoe.offload.policies.utility_states import MOST, Calibrated, Fixed, States


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
    eviction: Any = None
    """The eviction that was made before all others, which they may share."""


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
    "lfu": Policy(
        about="least often used since it got its slot",
        params={"prefetch": Word(("touch", "no-touch"))},
        make=lambda v, c: frequency.LFU(prefetch_touch=v["prefetch"] == "touch"),
    ),
    "lfru": Policy(
        about="least often used of those not recently used",
        params={"recent": Number(low=0, high=1, default=0.5)},
        make=lambda v, c: frequency.LFRU(recent=v["recent"]),
    ),
    "frequency": Policy(
        about="least often requested, with decay",
        params={"halve": Number(low=1, high=10**9, default=256, integer=True)},
        make=lambda v, c: frequency.Frequency(halve_epochs=v["halve"]),
    ),
    "least-stale": Policy(
        about="not used in this epoch first",
        params={"order": Word(("cyclic", "fifo", "layer", "four-tier"))},
        make=lambda v, c: _least_stale(v["order"], c),
    ),
    "utility": Policy(
        about="least likely to be asked for, the layer just passed first",
        params={
            "state": Word(("smoothed", "inertial", "adaptive")),
            "signal": Word(("count", "mass")),
            "smoothing": Number(low=0, high=0.9, open_low=True),
            "floor": Number(low=0, high=1),
            "tau": Number(low=1, high=MOST + 1, integer=True),
            "balance": Word(("none", *OBJECTIVES)),
        },
        make=lambda v, c: _utility(v, c.geometry),
        check=lambda v: _check_utility(v),
    ),
    "belady": Policy(
        about="used again latest: the bound, from the future",
        params={"admission": Word(("forced", "free"))},
        make=lambda v, c: Belady(c.future, forced=v["admission"] == "forced"),
        needs_future=True,
    ),
}

_TABLE_PARAMS: dict[str, Param] = {
    "width": Number(low=1, high=4096, integer=True),
    "threshold": Number(low=0, high=1, default=0.0),
    "learn": Word(("online", "frozen")),
    "file": File(),
    "trace": File(),
}
PREFETCH = {
    "none": Policy(about="nothing ahead of demand", make=lambda v, c: None),
    "gate": Policy(
        about="the next layer's router on this layer's input",
        params={"width": _TABLE_PARAMS["width"], "threshold": Number(low=0, high=1, open_low=True)},
        make=lambda v, c: _gate(v["width"], v["threshold"], c.geometry),
    ),
    "follow": Policy(
        about="what most often followed this layer's choice, from tables",
        params=_TABLE_PARAMS,
        make=lambda v, c: FollowerPrefetch(_tables(v, c), **_table_options(v, c)),
        check=lambda v: _check_tables(v),
    ),
    "token": Policy(
        about="what this token most often went to, from tables",
        params=_TABLE_PARAMS | {"tokens": Number(low=1, high=10**7, default=1024, integer=True)},
        make=lambda v, c: TokenPrefetch(_tables(v, c), **_table_options(v, c)),
        check=lambda v: _check_tables(v),
    ),
    "utility": Policy(
        about="experts of utility, of the layers that have run", make=lambda v, c: UtilityPrefetch(c.eviction)
    ),
    "oracle": Policy(
        about="what the next pass demands, from the future",
        params={"accuracy": Number(low=0, high=1, default=1.0)},
        make=lambda v, c: Oracle(c.future, num_experts=c.geometry.num_experts, accuracy=v["accuracy"], seed=c.seed),
        needs_future=True,
    ),
}
MISS = {
    "wait": Policy(about="fetch and wait", make=lambda v, c: waiting.Wait()),
    "compute": Policy(about="compute where the weights are", make=lambda v, c: waiting.Compute()),
    "auto": Policy(
        about="compute some there while others are fetched, whatever ends first", make=lambda v, c: waiting.Auto()
    ),
    "substitute": Policy(
        about="run a resident expert instead of a missing one of low weight",
        params={
            "rule": Word(("gate-weight", "first-choice", "all")),
            "threshold": Number(low=0, high=1, open_low=True),
            "weight": Word(("inherit", "own")),
        },
        make=lambda v, c: Substitute(_rule(v, c.geometry.top_k), own_weight=v["weight"] == "own"),
        check=lambda v: _check_rule(v),
        lossy=True,
    ),
}
ADMIT = {
    "always": Policy(about="what is fetched gets a slot", make=lambda v, c: None),
    "background": Policy(
        about="what is substituted or computed in place too much is loaded, without waiting",
        params={"beta": Number(low=0, high=1000, default=0.5, open_low=True)},
        make=lambda v, c: Background(v["beta"]),
    ),
}

CATALOG: dict[str, dict[str, Policy]] = {"evict": EVICT, "prefetch": PREFETCH, "miss": MISS, "admit": ADMIT}
ALIASES = {"cpu": "compute"}
DEFAULTS = {"evict": "lru", "prefetch": "none", "miss": "wait", "admit": "always"}
ADMIT_BESIDE = {"compute": "background", "auto": "background"}
"""The default beside a miss policy under which few or no experts would get a slot otherwise."""
PRESETS = {
    "quality-first": "evict=frequency,miss=substitute:gate-weight,admit=background:beta=0.5",
    "speed-first": "evict=frequency,miss=substitute:first-choice,admit=background:beta=0.5",
}
"""Spec P4's two."""


def _least_stale(order: str, context: Context) -> Eviction:
    return LeastStaleFIFO() if order == "fifo" else LeastStaleByLayer(context.geometry.layers, order)


def _utility(values: Values, geometry: Geometry) -> Eviction:
    if values["state"] == "smoothed":
        return Utility(
            top_k=geometry.top_k,
            num_experts=geometry.num_experts,
            smoothing=values["smoothing"] or SMOOTHING,
            signal=values["signal"],
            floor=values["floor"],
        )
    boundaries = Calibrated() if values["state"] == "adaptive" else Fixed()
    states = States(geometry.layers, geometry.num_experts, boundaries)
    objective = None if values["balance"] == "none" else values["balance"]
    return UtilityLevels(states, geometry.layers, tau=values["tau"] or 1, objective=objective)


def _check_utility(values: Values) -> tuple[str, str] | None:
    if values["state"] == "smoothed":
        integer = {"tau": values["tau"] is not None, "balance": values["balance"] != "none"}
        return next(((key, "only with inertial or adaptive") for key, told in integer.items() if told), None)
    real = {"signal": values["signal"] != "count"} | {key: values[key] is not None for key in ("smoothing", "floor")}
    if any(real.values()):
        key = next(key for key, told in real.items() if told)
        return key, f"only with smoothed: {values['state']} goes by whole counts"
    if values["balance"] != "none" and values["tau"] is not None:
        return "tau", f"only with balance=none: {values['balance']} chooses it"
    return None


def _gate(width: int | None, threshold: float | None, geometry: Geometry) -> GateLookahead:
    """A threshold alone may name twice the router's own width."""
    default = geometry.top_k if threshold is None else 2 * geometry.top_k
    return GateLookahead(top_k=geometry.top_k, width=width or default, threshold=threshold or 0.0)


def _rule(values: Values, top_k: int) -> Rule:
    """P4's 0.15 at top 10 is one and a half times the mean weight."""
    if values["rule"] != "gate-weight":
        return Rule(math.inf, first_too=values["rule"] == "all")
    return Rule(1.5 / top_k if values["threshold"] is None else values["threshold"])


def _check_rule(values: Values) -> tuple[str, str] | None:
    if values["threshold"] is not None and values["rule"] != "gate-weight":
        return "threshold", f"only with gate-weight: {values['rule']} looks at no weight"
    return None


def _tables(values: Values, context: Context) -> RouteTables:
    geometry, max_tokens = context.geometry, values.get("tokens", 0)
    shape = geometry.layers, geometry.num_experts
    tables = RouteTables(*shape, max_tokens=max_tokens)
    if values["file"] is not None:
        tables = RouteTables.load(values["file"], max_tokens=max_tokens)
        if (tables.layers, tables.num_experts) != shape:
            raise ConfigError("policies.prefetch.file", values["file"], f"tables of {_shape(*shape)}")
    if values["trace"] is not None:
        trace = read_route_trace(values["trace"])
        if (trace.layers, trace.num_experts) != shape:
            raise ConfigError("policies.prefetch.trace", values["trace"], f"a trace of {_shape(*shape)}")
        tables.learn_trace(trace)
    return tables


def _shape(layers: tuple[int, ...], num_experts: int) -> str:
    return f"the model's MoE layers {list(layers)} and {num_experts} experts"


def _table_options(values: Values, context: Context) -> dict[str, Any]:
    width = values["width"] or context.geometry.top_k
    return {"width": width, "threshold": values["threshold"], "learn": values["learn"] == "online"}


def _check_tables(values: Values) -> tuple[str, str] | None:
    if values["learn"] == "frozen" and values["file"] is None and values["trace"] is None:
        return "learn", "online without file= and trace=: frozen tables without either stay empty"
    return None
