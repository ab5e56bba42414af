"""Spread: how the work of a decoder is shared among ranks. Alone, it is not.

Shapes: T rows of the step, R of them worked on here, D hidden, M rows whose logits are wanted, V vocabulary.
"""

from typing import Protocol

import torch

from smoe.collectives.group import Group
from smoe.collectives.rows import RowOrder, gather_rows
from smoe.collectives.schedules.protocol import Schedule, StepRows
from smoe.kernels import Linear
from smoe.models.batch import Batch, StepContext
from smoe.models.kv import LayerCache
from smoe.models.tensor_parallel import TensorShare

Tensor = torch.Tensor


class AttentionBlock(Protocol):
    def __call__(self, x_TD: Tensor, context: StepContext, cache: LayerCache, *, add: bool = True) -> Tensor:
        """attention(norm(x)) of this rank's heads, plus x unless `add` is false."""
        ...


class Spread(Protocol):
    """What a decoder does once a step and twice a layer. Between `attend` and `gather`, rows are this rank's own."""

    group: Group | None
    """The tensor-parallel group, for what must be summed over all heads; None: all heads are here."""

    def begin(self, batch: Batch) -> None: ...

    def embed(self, table_VD: Tensor, token_ids_T: Tensor) -> Tensor:
        """[T, D] on every rank, in the table's dtype."""
        ...

    def attend(
        self, layer: int, attention: AttentionBlock, x_TD: Tensor, context: StepContext, cache: LayerCache
    ) -> Tensor:
        """[R, D]: x + attention(norm(x)) over all heads."""
        ...

    def gather(self, layer: int, rows_RD: Tensor) -> Tensor:
        """[T, D] on every rank."""
        ...

    def logits(self, head: Linear, x_MD: Tensor) -> Tensor:
        """[M, V] f32 on the rank that samples; on others what they hold of it."""
        ...


class Alone:
    """One rank has everything."""

    group = None

    def begin(self, batch: Batch) -> None:
        return

    def embed(self, table_VD: Tensor, token_ids_T: Tensor) -> Tensor:
        return table_VD.index_select(0, token_ids_T)

    def attend(
        self, layer: int, attention: AttentionBlock, x_TD: Tensor, context: StepContext, cache: LayerCache
    ) -> Tensor:
        return attention(x_TD, context, cache)

    def gather(self, layer: int, rows_RD: Tensor) -> Tensor:
        return rows_RD

    def logits(self, head: Linear, x_MD: Tensor) -> Tensor:
        logits_MV: Tensor = head(x_MD)
        return logits_MV


class TensorParallel:
    """Heads and vocabulary as `share` says; rows between the halves of a layer as `schedule` says.

    The rank at place 0 samples.
    """

    def __init__(self, group: Group, schedule: Schedule, share: TensorShare) -> None:
        self.group: Group | None = group
        self._group, self._schedule = group, schedule
        self._vocab = [TensorShare(share.spec, rank, share.size).vocab() for rank in range(share.size)]

    def use(self, schedule: Schedule) -> None:
        """Between two forwards, on all ranks."""
        self._schedule = schedule

    def begin(self, batch: Batch) -> None:
        self._schedule.begin_step(StepRows(token_ids_T=batch.token_ids_T))

    def embed(self, table_VD: Tensor, token_ids_T: Tensor) -> Tensor:
        """Each token's row once, from the rank that holds it."""
        rank = self._group.rank
        token_U, row_T = torch.unique(token_ids_T, return_inverse=True)
        # Ascending tokens lie rank by rank.
        edges = torch.tensor([0, *(stop for _, stop in self._vocab)], device=token_U.device)
        counts = torch.searchsorted(token_U, edges).diff().tolist()
        order = RowOrder(counts=tuple(counts))
        own_R = token_U[order.own(rank)] - self._vocab[rank][0]
        rows_UD = gather_rows(table_VD.index_select(0, own_R), order, self._group, purpose="vocab")
        return rows_UD.index_select(0, row_T)

    def attend(
        self, layer: int, attention: AttentionBlock, x_TD: Tensor, context: StepContext, cache: LayerCache
    ) -> Tensor:
        # A group of ranks without rows in this step runs for the experts that it holds for others.
        partial_TD = attention(x_TD, context, cache, add=False) if len(x_TD) else x_TD
        return self._schedule.reduce(layer, partial_TD, x_TD)

    def gather(self, layer: int, rows_RD: Tensor) -> Tensor:
        return self._schedule.gather(layer, rows_RD)

    def logits(self, head: Linear, x_MD: Tensor) -> Tensor:
        own_VM = head(x_MD).T.contiguous()
        sizes = [stop - first for first, stop in self._vocab]
        samples = self._group.rank == 0
        send = [len(own_VM), *[0] * (self._group.size - 1)]
        receive = sizes if samples else [0] * self._group.size
        whole_VM = self._group.all_to_all(own_VM, send, receive, "vocab")
        return whole_VM.T.contiguous() if samples else own_VM.T
