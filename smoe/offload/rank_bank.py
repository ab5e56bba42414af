"""The experts of one rank of several in slots, asked for by rows of all ranks."""

import logging

import numpy as np
import torch

from smoe.core.errors import StoreError
from smoe.models.bank import RoutedRows, Substitutions
from smoe.offload.bank import OffloadedBank

log = logging.getLogger(__name__)


class RankOffloadedBank(OffloadedBank):
    """Choices of -1 are other ranks'. A layer is asked for as often as rows arrive; `substitutions` are those of the
    last `apply`. The other ranks wait for every answer, so where experts cannot be read the rows that need them are
    NaN, which ends their requests and no others; `last_unread` says why.
    """

    _unread: str | None = None

    def last_unread(self) -> str | None:
        """The first error of the forward begun last."""
        return self._unread

    def begin_forward(self, token_ids_T: torch.Tensor) -> None:
        super().begin_forward(token_ids_T)
        self._unread = None

    def apply(self, rows: RoutedRows, residual_TD: torch.Tensor) -> torch.Tensor:
        self._routings.substitutions = None
        if not len(rows.x_TD):
            return residual_TD
        try:
            return super().apply(rows, residual_TD)
        except StoreError as error:
            log.warning("%s", error)
            self._unread = self._unread or str(error)
        return self._row_by_row(rows, residual_TD)

    def _row_by_row(self, rows: RoutedRows, residual_TD: torch.Tensor) -> torch.Tensor:
        count, routings, out_TD = len(rows.x_TD), self._routings, torch.full_like(rows.x_TD, torch.nan)
        slots_T, mass_T = np.zeros(count, np.int64), np.zeros(count)
        for row in range(count):
            one = slice(row, row + 1)
            routings.substitutions = None
            try:
                out_TD[one] = super().apply(rows.part(one), residual_TD[one])
            except StoreError:
                continue
            if (replaced := super().substitutions()) is not None:
                slots_T[one], mass_T[one] = replaced
        routings.substitutions = Substitutions(slots_T, mass_T) if slots_T.any() else None
        return out_TD
