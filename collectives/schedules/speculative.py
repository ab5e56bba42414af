"""Each row to the rank whose experts it will probably use: the shuffled reduce-scatter of Speculative MoE.

Where a row goes is looked up before its layer's router has run: by its token, or by the ranks that its experts were on
in the two layers before, whichever is surer; then rows are aligned to what each rank may take. A wrong guess costs
traffic, never a result.
"""

from collections.abc import Sequence

import numpy as np
import torch

from smoe.clustering.align import align as host_align
from smoe.clustering.align import capacity_of
from smoe.collectives.group import Group
from smoe.collectives.rows import RowOrder, gather_rows, gather_rows_and, reduce_scatter
from smoe.collectives.schedules.group_tables import within_group
from smoe.collectives.schedules.protocol import StepRows
from smoe.core.placement import Array, RoutingTables
from smoe.kernels.routing.align import align
from smoe.kernels.routing.lookup import LayerTables, lookup, majority_device

Tensor = torch.Tensor


class Speculative:
    """`capacity_factor` over an even share of the rows is what a rank may take: 1 gives chunks that differ by no more
    than the alignment leaves, more follows the tables further.

    The devices of the tables may be more than the ranks of the group, which are then some of them, by their global
    ranks. With `chain`, each row's device travels with the row in `gather`: one more value a row.
    """

    def __init__(
        self,
        group: Group,
        tables: RoutingTables,
        layers: Sequence[int],
        *,
        capacity_factor: float = 1.0,
        chain: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        """`layers` are the decoder layers of the tables' axis. Other layers share rows out evenly, in their order."""
        self._group, self._factor, self._chain = group, capacity_factor, chain
        self._num_devices = tables.chain_device.shape[1] - 1
        if self._num_devices > group.size:
            tables = within_group(tables, group.ranks)
        self._tables = {layer: _layer_tables(tables, index, device) for index, layer in enumerate(layers)}
        self._even = self._order = RowOrder.even(0, group.size)
        self._token_ids_T = torch.empty(0, dtype=torch.int64)
        self._history: tuple[Tensor, Tensor] | None = None
        self._own_devices: Tensor | None = None

    def begin_step(self, step: StepRows) -> None:
        self._token_ids_T = step.token_ids_T
        self._even = RowOrder.even(len(step.token_ids_T), self._group.size)
        nowhere_T = torch.full_like(step.token_ids_T, self._num_devices, dtype=torch.int32)
        self._history = (nowhere_T, nowhere_T)

    def reduce(self, layer: int, partial_TD: Tensor, residual_TD: Tensor) -> Tensor:
        tables = self._tables.get(layer)
        self._order = self._even if tables is None or not len(partial_TD) else self._guess(tables)
        self._own_devices = None
        return reduce_scatter(partial_TD, residual_TD, self._order, self._group)

    def gather(self, layer: int, rows_RD: Tensor) -> Tensor:
        if self._own_devices is None:
            return gather_rows(rows_RD, self._order, self._group)
        rows_TD, device_T = gather_rows_and(rows_RD, self._own_devices, self._order, self._group)
        assert self._history is not None
        self._history = (self._history[1], device_T)
        return rows_TD

    def own_rows(self) -> Tensor:
        return self._order.rows(self._group.rank, self._token_ids_T.device)

    def note_devices(self, layer: int, device_RK: Tensor) -> None:
        if self._chain and layer in self._tables:
            self._own_devices = majority_device(device_RK, self._num_devices)

    def _guess(self, tables: LayerTables) -> RowOrder:
        assert self._history is not None
        found = lookup(tables, self._token_ids_T, *self._history, chain=self._chain)
        size, rows = self._group.size, len(self._token_ids_T)
        capacity = capacity_of(rows, size, self._factor)
        second_T = found.second_T % size  # of an id that no table knows it may be any device
        wishes = (found.device_T, second_T, found.confidence_T)
        return RowOrder.by_place(_align(*wishes, size, min(capacity, rows)), size)


def _align(device_T: Tensor, second_T: Tensor, confidence_T: Tensor, size: int, capacity: int) -> Tensor:
    if not device_T.is_cpu:
        return align(device_T, second_T, confidence_T, size, capacity)
    # The same rule in numpy, whose small operations take a fifth of the time.
    placed = host_align(device_T.numpy(), second_T.numpy(), confidence_T.numpy(), size, capacity)
    return torch.from_numpy(placed)


def _layer_tables(tables: RoutingTables, index: int, device: torch.device | str) -> LayerTables:
    def on_device(table: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(table[index])).to(device)

    return LayerTables(
        token_device_V=on_device(tables.token_device),
        token_second_V=on_device(tables.token_second),
        token_confidence_V=on_device(tables.token_confidence),
        chain_device=on_device(tables.chain_device),
        chain_confidence=on_device(tables.chain_confidence),
    )
