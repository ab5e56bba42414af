"""RowOrder: which rank works on which rows of a step, and the two exchanges that go by it.

Shapes: T rows of the step, known to every rank of the group; R rows of this rank; G ranks; D hidden.
"""

from dataclasses import dataclass

import torch

from smoe.collectives.group import Group
from smoe.kernels.routing.reduce import reduce_chunks
from smoe.kernels.routing.rows import gather_rows as gather

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrder:
    """Rank g has the rows order_T[first[g]:first[g] + counts[g]]. `order_T` is a permutation, i64; the same on every
    rank. None is the order in which the rows are: rank g has the g-th stretch of them."""

    counts: tuple[int, ...]
    order_T: Tensor | None = None

    @classmethod
    def by_place(cls, place_T: Tensor, ranks: int) -> "RowOrder":
        """Each row where `place_T` says, in row order there."""
        counts = torch.bincount(place_T, minlength=ranks).tolist()
        return cls(counts=tuple(counts), order_T=place_T.argsort(stable=True))

    @classmethod
    def even(cls, rows: int, ranks: int) -> "RowOrder":
        """In their order, as evenly as it goes; the first ranks have one more."""
        share, more = divmod(rows, ranks)
        return cls(counts=tuple(share + (rank < more) for rank in range(ranks)))

    def places(self) -> Tensor:
        """[T] i64: where each row lies when the ranks' rows lie one after the other. Only with an order."""
        assert self.order_T is not None
        rows = torch.arange(len(self.order_T), device=self.order_T.device)
        return torch.empty_like(rows).scatter_(0, self.order_T, rows)

    def own(self, rank: int) -> slice:
        first = sum(self.counts[:rank])
        return slice(first, first + self.counts[rank])

    def rows(self, rank: int, device: torch.device) -> Tensor:
        """[R] i64, the rows of `rank`."""
        own = self.own(rank)
        return torch.arange(own.start, own.stop, device=device) if self.order_T is None else self.order_T[own]

    def take(self, rows_TD: Tensor, rank: int) -> Tensor:
        """[R, D], those of `rank`."""
        own = self.own(rank)
        return rows_TD[own] if self.order_T is None else _pick(rows_TD, self.order_T[own])


def reduce_scatter(partial_TD: Tensor, residual_TD: Tensor, order: RowOrder, group: Group) -> Tensor:
    """[R, D]: of the group's own rows, the sum over ranks of their partials, in ascending rank, and the residual.

    Added in fp32 and rounded once, so that the result does not depend on which rank works on a row. Every rank sends
    each other one its rows: (G - 1) / G of the partials in all, as a ring would.
    """
    own = order.counts[group.rank]
    packed_TD = partial_TD if order.order_T is None else _pick(partial_TD, order.order_T)
    received = group.all_to_all(packed_TD, order.counts, [own] * group.size, "reduce")
    chunks_GRD = received.view(group.size, own, partial_TD.shape[1])
    return reduce_chunks(chunks_GRD, residual_TD.dtype, residual_TD, order.rows(group.rank, residual_TD.device))


def all_reduce_in_order(partial_TD: Tensor, residual_TD: Tensor, group: Group) -> Tensor:
    """[T, D]: residual + the sum over ranks of the partials, in ascending rank, on every rank: twice the bytes."""
    order = RowOrder.even(len(partial_TD), group.size)
    return gather_rows(reduce_scatter(partial_TD, residual_TD, order, group), order, group, purpose="reduce")


def gather_rows(rows_RD: Tensor, order: RowOrder, group: Group, *, purpose: str = "gather") -> Tensor:
    """[T, D], the rows of all ranks in their places, on every rank. The inverse of RowOrder.take."""
    gathered = rows_RD if group.size == 1 else group.all_gather(rows_RD, purpose, order.counts)
    return gathered if order.order_T is None else _pick(gathered, order.places())


def gather_rows_and(rows_RD: Tensor, value_R: Tensor, order: RowOrder, group: Group) -> tuple[Tensor, Tensor]:
    """What gather_rows gives, and of each row a small whole number, [T] i32.

    It travels as one more column: every dtype holds it exactly.
    """
    told_RX = torch.cat((rows_RD, value_R.to(rows_RD.dtype).unsqueeze(1)), dim=1)
    gathered_TX = told_RX if group.size == 1 else group.all_gather(told_RX, "gather", order.counts)
    rows, values = gathered_TX[:, :-1], gathered_TX[:, -1]
    if order.order_T is None:
        return rows.contiguous(), values.to(torch.int32)
    places_T = order.places()
    return _pick(rows, places_T), values.index_select(0, places_T).to(torch.int32)


def _pick(rows_TD: Tensor, index_N: Tensor) -> Tensor:
    """[N, D]. The kernel on CUDA; elsewhere not its twin, which also looks for places that hold no row."""
    return gather(rows_TD, index_N) if rows_TD.is_cuda else rows_TD.index_select(0, index_N)
