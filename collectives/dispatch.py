"""Rows to the ranks that hold their experts, and the weighted sums back.

A row goes once to each rank that holds one or more of its experts (or, for comparison, once for each expert), with the
ids and weights to compute there; it comes back as one summed row. Shapes: R own rows, D hidden, K choices a row, G
ranks, S rows to compute somewhere, N rows to compute here. Ids are the model's expert ids everywhere; -1 stands for no
choice.
"""

from collections.abc import Callable

import torch

from smoe.collectives.chunks import Chunks
from smoe.collectives.dispatched import Compute, Dispatched, computed
from smoe.collectives.group import Group
from smoe.collectives.message_dispatch import MessageDispatch, Rows
from smoe.collectives.sends import Sends, add_up, plan_sends

__all__ = ["Compute", "Dispatched", "Dispatcher"]

Tensor = torch.Tensor


class Dispatcher:
    """`dedup=False` sends a row once for each of its experts, as systems without de-duplication do.

    Own rows go in chunks, so that what a rank receives at a time is bounded; where ranks exchange messages, and a rank
    has many, it computes one chunk while others are under way, in several calls of `compute` a layer.
    """

    def __init__(self, group: Group, *, dedup: bool = True, chunks: Chunks | None = None) -> None:
        self._group, self._dedup, self._chunks = group, dedup, chunks or Chunks()
        self._messages: MessageDispatch | None = None
        if group.messages and group.size > 1:
            self._messages = MessageDispatch(group, self._chunks, dedup=dedup)

    def apply(
        self,
        x_RD: Tensor,
        ids_RK: Tensor,
        weights_RK: Tensor,
        device_RK: Tensor,
        residual: Tensor | Callable[[], Tensor],
        compute: Compute,
    ) -> Tensor:
        """[R, D]: residual + the sums of each row's experts, computed where `device_RK` i64 says, by places in the
        group; added in ascending place. The residual, [R, D], may be work to do while rows are under way.

        Collective; R may be 0.
        """
        rows = Rows(x_RD, ids_RK, weights_RK, device_RK)
        if self._messages is not None:
            return self._messages.apply(rows, (lambda: residual) if isinstance(residual, Tensor) else residual, compute)
        residual_RD = residual if isinstance(residual, Tensor) else residual()
        size, done, parts = self._chunks.max_rows, 0, []
        wanted = total = self._chunks.count(len(rows))
        while done < total:
            own = slice(done * size, (done + 1) * size)
            back_SD, sends, rounds = self._round(rows[own], wanted, compute)
            parts.append(add_up(back_SD, sends, residual_RD[own]))
            done, total = done + 1, max(total, rounds)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _round(self, rows: Rows, wanted: int, compute: Compute) -> tuple[Tensor, Sends, int]:
        """By collectives: sizes, one all-to-all there and one back. Also the most rounds that a rank wants."""
        group, layout = self._group, rows.layout
        sends = plan_sends(rows.ids_RK, rows.weights_RK, rows.device_RK, group.size, dedup=self._dedup)
        told_G2 = torch.tensor([(count, wanted) for count in sends.counts], device=rows.x_RD.device)
        heard_G2 = group.all_to_all(told_G2, [1] * group.size, [1] * group.size, "sizes")
        received, rounds_G = heard_G2.T.tolist()
        packed = layout.pack_rows(rows.x_RD, sends.row_S, sends.ids_SK, sends.weights_SK)
        x_ND, ids_NK, weights_NK = layout.unpack_rows(group.all_to_all(packed, sends.counts, received, "dispatch"))
        sums_ND = computed(Dispatched(x_ND=x_ND, ids_NK=ids_NK, weights_NK=weights_NK), compute)
        return group.all_to_all(sums_ND, received, sends.counts, "combine"), sends, max(rounds_G)
