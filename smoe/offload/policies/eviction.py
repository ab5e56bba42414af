"""What an eviction policy is told and asked. Torch-free: the same object runs live and in simulation."""

from collections.abc import Callable, Sequence
from typing import Protocol

Evictable = Callable[[int, int], bool]
"""Whether the expert (layer, expert) may be evicted now: resident, not pinned, not in flight."""


class Eviction(Protocol):
    """Orders the experts that hold a slot. Knows nothing of slots, pins or bytes.

    One thread calls; the order of calls decides everything, so that equal calls give equal victims.
    """

    def admit(self, layer: int, expert: int) -> None:
        """(layer, expert) got a slot; called when its transfer is issued. Mutates. It holds none before."""
        ...

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        """One forward uses these experts of `layer`, all holding slots, in this order. Mutates."""
        ...

    def forget(self, layer: int, expert: int) -> None:
        """(layer, expert) lost its slot: evicted, or its transfer failed. Mutates."""
        ...

    def victim(self, layers: Sequence[int], evictable: Evictable) -> tuple[int, int] | None:
        """The expert to lose its slot next, among those of `layers` for which `evictable`; None when there is none.

        Changes nothing: `forget` follows when the choice is carried out.
        """
        ...
