"""Schedule: how the rows of a step are shared among the ranks of one tensor-parallel group, layer by layer."""

from dataclasses import dataclass
from typing import Protocol

import torch

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """What every rank of the group knows of a step before its first layer: the tokens of its T rows, i64."""

    token_ids_T: Tensor


class Schedule(Protocol):
    """A layer calls `reduce`, works on the rows that it gets, and calls `gather`. All ranks call alike.

    Schedules differ in which rank gets which rows and in the bytes that it takes, never in a result (in fp32: never in
    a bit, as long as what a rank does to a row does not depend on the rows beside it).
    """

    def begin_step(self, step: StepRows) -> None:
        """The step whose layers follow."""
        ...

    def reduce(self, layer: int, partial_TD: Tensor, residual_TD: Tensor) -> Tensor:
        """[R, D]: of the rows that this rank works on, the sum of all ranks' partials and the residual."""
        ...

    def gather(self, layer: int, rows_RD: Tensor) -> Tensor:
        """[T, D]: the rows of all ranks, in the step's order. Ends what `reduce` of the same layer began."""
        ...

    def own_rows(self) -> Tensor:
        """[R] i64, the places in the step of the rows that `reduce` gave last."""
        ...

    def note_devices(self, layer: int, device_RK: Tensor) -> None:
        """Where the experts are that the rows' router chose (places in the expert group), before `gather`."""
        ...
