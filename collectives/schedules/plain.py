"""Schedules that share the rows out in their order, as evenly as it goes."""

import torch

from smoe.collectives.group import Group
from smoe.collectives.rows import RowOrder, all_reduce_in_order, gather_rows, reduce_scatter
from smoe.collectives.schedules.protocol import StepRows

Tensor = torch.Tensor


class Scatter:
    """Reduce-scatter, work on the own stretch of rows, all-gather: 2u of traffic, u being that of one of them."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._order = RowOrder.even(0, group.size)

    def begin_step(self, step: StepRows) -> None:
        self._order = RowOrder.even(len(step.token_ids_T), self._group.size)

    def reduce(self, layer: int, partial_TD: Tensor, residual_TD: Tensor) -> Tensor:
        return reduce_scatter(partial_TD, residual_TD, self._order, self._group)

    def gather(self, layer: int, rows_RD: Tensor) -> Tensor:
        return gather_rows(rows_RD, self._order, self._group)

    def own_rows(self) -> Tensor:
        return self._order.rows(self._group.rank, torch.device("cpu"))

    def note_devices(self, layer: int, device_RK: Tensor) -> None:
        return


class AllReduce(Scatter):
    """All-reduce, then each rank keeps its stretch of rows: the order of DeepSpeed-MoE and of TP + EP, 3u of traffic.

    `in_order=False` leaves the order of the sum over ranks to the backend, which may be faster.
    """

    def __init__(self, group: Group, *, in_order: bool = True) -> None:
        super().__init__(group)
        self._in_order = in_order

    def reduce(self, layer: int, partial_TD: Tensor, residual_TD: Tensor) -> Tensor:
        if self._in_order:
            summed_TD = all_reduce_in_order(partial_TD, residual_TD, self._group)
        else:
            summed_TD = residual_TD + self._group.all_reduce(partial_TD, "reduce")
        return self._order.take(summed_TD, self._group.rank)
