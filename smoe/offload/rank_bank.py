"""The experts of one rank of several in slots, asked for by rows of all ranks."""

import logging

import numpy as np
import torch

from smoe.core.errors import StoreError
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

    def apply(
        self,
        layer: int,
        x_TD: torch.Tensor,
        ids_TK: torch.Tensor,
        weights_TK: torch.Tensor,
        residual_TD: torch.Tensor,
        logits_TE: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self._replaced = None
        if not len(x_TD):
            return residual_TD
        try:
            return super().apply(layer, x_TD, ids_TK, weights_TK, residual_TD, logits_TE)
        except StoreError as error:
            log.warning("%s", error)
            self._unread = self._unread or str(error)
        return self._row_by_row(layer, x_TD, ids_TK, weights_TK, residual_TD, logits_TE)

    def _row_by_row(
        self,
        layer: int,
        x_TD: torch.Tensor,
        ids_TK: torch.Tensor,
        weights_TK: torch.Tensor,
        residual_TD: torch.Tensor,
        logits_TE: torch.Tensor | None,
    ) -> torch.Tensor:
        out_TD = torch.full_like(x_TD, torch.nan)
        slots_T, mass_T = np.zeros(len(x_TD), np.int64), np.zeros(len(x_TD))
        for row in range(len(x_TD)):
            one = slice(row, row + 1)
            logits_1E = None if logits_TE is None else logits_TE[one]
            self._replaced = None
            try:
                out_TD[one] = super().apply(layer, x_TD[one], ids_TK[one], weights_TK[one], residual_TD[one], logits_1E)
            except StoreError:
                continue
            if (replaced := super().substitutions()) is not None:
                slots_T[one], mass_T[one] = replaced
        self._replaced = None
        if slots_T.any():
            self._replaced = (slots_T, mass_T)
        return out_TD
