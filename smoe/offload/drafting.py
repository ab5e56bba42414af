"""What a draft's routing does while it drafts: the seam between the draft loop and what brings experts in."""

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy.typing as npt

from smoe.offload.policies.protocols import Key

Array = npt.NDArray[Any]


class DraftWindow(Protocol):
    """One verification window: draft steps, then one forward of the model. Called by the thread that computes.

    begin(K); for each drafted token: routed() of every MoE layer, then after_step(); at last before_verify().
    A window may be verified after fewer than K steps.
    """

    def begin(self, steps: int) -> None:
        """A window of at most `steps` >= 1 drafted tokens a sequence starts."""
        ...

    def routed(self, layer: int, ids_TK: Array) -> None:
        """What the draft's router chose in a step, i32 [T, K] (T sequences that draft)."""
        ...

    def after_step(self, seconds: float) -> None:
        """One more token of each sequence is drafted; it took so long. May begin transfers."""
        ...

    def before_verify(self) -> None:
        """Drafting ends here; transfers under way go on. Counters are cleared."""
        ...


class Prefetcher(Protocol):
    """The part of an offloaded bank that a window uses, between forwards of the model."""

    @property
    def slots_a_layer(self) -> int:
        """M: slots that a layer's plan may fill."""
        ...

    def prefetch(self, keys: Sequence[Key]) -> int:
        """`keys`, distinct, of each layer the most wanted first, replace those of the call before: takes in what has
        arrived, marks resident ones as used, begins transfers of the others, those of the nearest layer first, and
        takes back transfers that have not begun and are not wanted any more. Never evicts one of `keys`. Returns the
        bytes newly asked for."""
        ...

    def poll(self) -> None:
        """Takes in what has arrived, and begins more of what is still wanted. Never waits."""
        ...

    def resident(self) -> Collection[Key]:
        """What holds a slot, and its bytes are there."""
        ...

    @property
    def bytes_per_second(self) -> float:
        """Measured rate of the link into the slots; before anything moved, a declared guess."""
        ...
