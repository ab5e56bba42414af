"""Replay: the schedule that knows where each row's experts are, because it has seen the step before."""

from collections.abc import Mapping

import torch

from smoe.collectives.group import Group
from smoe.collectives.rows import RowOrder, gather_rows
from smoe.collectives.schedules.plain import Scatter
from smoe.kernels.routing.align import align

Tensor = torch.Tensor


class Replay(Scatter):
    """As `speculative` with tables that are always right: rows go to the rank that computes most of their experts."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.orders: Mapping[int, RowOrder] = {}

    def reduce(self, layer: int, partial_TD: Tensor, residual_TD: Tensor) -> Tensor:
        self._order = self.orders[layer]
        return super().reduce(layer, partial_TD, residual_TD)


class Learn(Scatter):
    """Rows in their order; `orders` become those of a Replay of the same step."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.orders: dict[int, RowOrder] = {}

    def note_devices(self, layer: int, device_RK: Tensor) -> None:
        device_TK = gather_rows(device_RK.contiguous(), self._order, self._group, purpose="sizes")
        self.orders[layer] = best_order(device_TK, self._group.size)


def best_order(device_TK: Tensor, ranks: int) -> RowOrder:
    """Chunks as even as `speculative` makes them, with most of the rows' choices at home: the surest rows first."""
    rows, choices = device_TK.shape
    counts_TG = torch.nn.functional.one_hot(device_TK.long(), ranks).sum(1)
    best = counts_TG.sort(dim=1, descending=True, stable=True)
    device_T, second_T = best.indices[:, 0], best.indices[:, min(1, ranks - 1)]
    placed_T = align(device_T, second_T, best.values[:, 0] / choices, ranks, -(-rows // ranks))
    return RowOrder.by_place(placed_T, ranks)
