"""Experts that can be computed where they are, without a slot."""

from collections.abc import Sequence
from typing import Protocol

from smoe.kernels import ExpertTable
from smoe.offload.policies.protocols import Array


class InPlace(Protocol):
    """One thread calls. What is held stays where it is until `release`."""

    def hold(self, layer: int, experts: Sequence[int]) -> frozenset[int]:
        """Those of `experts` that can be computed here, from now on held."""
        ...

    def release(self) -> None:
        """Gives back all that is held."""
        ...

    def table(self, layer: int) -> ExpertTable:
        """Their weights, in memory that the CPU computes from."""
        ...

    def expert2slot(self, layer: int) -> Array:
        """[E] i32: the slot of `table` of a held expert; anything where an expert is not held."""
        ...
