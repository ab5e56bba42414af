"""What policies are told and asked. Torch-free: the same objects run live and in the simulator.

One thread calls; the order of calls decides everything, so equal calls give equal decisions. A policy knows nothing
of slots, bytes or time, except where a method hands it a measured cost.

An *epoch* is one target forward (all layers once). Draft passes do not advance it. A layer's *pass* is one apply.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy.typing as npt

Key = tuple[int, int]
"""(decoder layer, expert)."""

Evictable = Callable[[int, int], bool]
"""Whether (layer, expert) may be evicted now: resident, not pinned, not in flight."""

Array = npt.NDArray[Any]


class Reason(Enum):
    """Why an expert gets a slot."""

    DEMAND = "demand"
    PREFETCH = "prefetch"
    ADMISSION = "admission"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """What one layer's router chose for T rows: ids [T, k] descending by weight, weights [T, k] f32, and, where the
    policy asked for them (`needs_logits`), logits [T, E] f32. `token_ids` [T] are the tokens that went in.

    An id of -1 is a choice that another device computes; its weight is the row's all the same, and logits are -inf for
    experts that nobody may choose here instead of another."""

    layer: int
    ids: Array
    weights: Array | None = None
    logits: Array | None = None
    token_ids: Array | None = None


class Eviction(Protocol):
    """Orders the experts that hold a slot."""

    def begin_epoch(self) -> None:
        """A target forward starts. Mutates."""
        ...

    def begin_layer(self, layer: int) -> None:
        """The pass of `layer` starts: the current position for distances. Mutates."""
        ...

    def admit(self, layer: int, expert: int, reason: Reason) -> None:
        """(layer, expert) got a slot; called when its transfer is issued. Mutates. It holds none before."""
        ...

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        """The pass uses these experts, in this order: they hold a slot, though the transfer of some may still be under
        way. Mutates."""
        ...

    def demand(self, routing: Routing) -> None:
        """What the router asked for, resident or not, before `touch` (frequency, utility and gate-mass policies count
        here; substitutes are not counted). Mutates."""
        ...

    def confirm(self, layer: int, experts: Sequence[int]) -> None:
        """A prefetch plan named these experts and they hold a slot already (or are in flight). Mutates."""
        ...

    def forget(self, layer: int, expert: int) -> None:
        """(layer, expert) lost its slot: evicted, or its transfer failed or was cancelled. Mutates."""
        ...

    def victim(self, layers: Sequence[int], evictable: Evictable, wanted: Key, reason: Reason) -> Key | None:
        """Whose slot `wanted` takes, among `layers` and `evictable`; None: nobody's (Belady without forced admission
        may refuse). Changes nothing: `forget` follows when the choice is carried out."""
        ...


class Prefetch(Protocol):
    """Names experts that later layers will use."""

    needs_lookahead: bool
    """Whether `plan` wants the next layer's router applied to this layer's input."""

    def plan(self, routing: Routing, next_layer: int, lookahead_logits: Array | None) -> Sequence[Key]:
        """After the routing of a pass is known: experts to fetch, most wanted first, resident ones included.

        `next_layer` is the next MoE layer (of the next forward after the last one). `lookahead_logits` [T, E] are
        next_layer's router applied to this layer's input, rounded to float16.
        """
        ...

    def observe(self, routing: Routing) -> None:
        """What a pass really asked for; learns. Once for every pass, before its `plan`. Mutates."""
        ...


class Miss(Enum):
    """What happens to one missing (row, choice)."""

    WAIT = "wait"
    COMPUTE = "compute"  # where the weights are, without a slot
    SUBSTITUTE = "substitute"  # lossy


@dataclass(frozen=True, slots=True, kw_only=True)
class MissDecision:
    """Per pass. `ids` and `weights` [T, k] are what is to be computed, equal to the routing's unless `lossy`.

    `compute` are missing or late experts to compute where their weights are, as far as that can be done; all others
    are waited for.
    `substituted` [T] slots and `mass` [T] their summed original weights (normalised over the row's k), per row.
    """

    ids: Array
    weights: Array
    compute: frozenset[int] = frozenset()
    substituted: Array | None = None
    mass: Array | None = None


class Costs(Protocol):
    """Seconds, as measured or declared."""

    @property
    def fetch_s(self) -> float:
        """One transfer into a slot, with nothing before it on the link."""
        ...

    def compute_s(self, rows: int) -> float:
        """`rows` rows of one expert where it is."""
        ...

    def slot_s(self, rows: int) -> float:
        """`rows` rows of one expert from its slot."""
        ...


class MissPolicy(Protocol):
    needs_logits: bool
    lossy: bool
    computes: bool
    """Whether decisions may name experts to compute where they are."""

    def decide(self, routing: Routing, resident: frozenset[int], late: frozenset[int], costs: Costs) -> MissDecision:
        """`resident` experts of the layer, and `late` ones, whose transfer is under way. May mutate its own counts."""
        ...


class Admission(Protocol):
    """Decides which of the experts that were asked for and got no slot are loaded in the background."""

    def bypassed(self, layer: int, experts: Sequence[int], mass: Sequence[float]) -> Sequence[Key]:
        """Gate mass just substituted or computed in place, by expert; returns experts to load without waiting.
        Mutates."""
        ...


@dataclass(frozen=True, slots=True)
class PolicySet:
    """One of each; made by `smoe.offload.policies.spec.parse_policies(text) -> PolicySpec`, `.build(geometry)`."""

    eviction: Eviction
    prefetch: Prefetch | None
    miss: MissPolicy
    admission: Admission | None
