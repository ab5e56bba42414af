"""Rows of all ranks computed by a bank whose policies look at more of a row than its choices here.

What they want to know travels as more columns of the row, what they say comes back in them. Shapes: R own rows, N rows
to compute here, T rows of the step, K choices, E experts, D hidden, X columns as they travel.
"""

import torch

from smoe.collectives.dispatch import Dispatched
from smoe.models.bank import ExpertBank, RoutedRows, Substitutions

Tensor = torch.Tensor
_SAID = 3
"""Columns that come back: choices replaced, and their weights in two parts, as bf16 has eight bits."""


class Informed:
    """The sender of a row tells its weights of all choices and, to a `lossy` bank, the router's logits; it hears what
    was replaced. Every rank has one. A lossy bank's `substitutions` are those of its last `apply`."""

    def __init__(self, local: ExpertBank, *, lossy: bool) -> None:
        self._local, self.lossy = local, lossy
        self._replaced_T2 = torch.zeros(0, 2)

    def begin_forward(self, num_rows: int) -> None:
        self._replaced_T2 = torch.zeros(num_rows, 2)

    def widen(self, x_RD: Tensor, ids_RK: Tensor, weights_RK: Tensor, logits_RE: Tensor | None) -> Tensor:
        """[R, X]: rows as they travel."""
        told_RX = weights_RK
        if self.lossy:
            assert logits_RE is not None
            # Of no expert that the row has chosen anyway, wherever it is computed.
            free_RE = logits_RE.float().scatter(1, ids_RK.long(), -torch.inf)
            told_RX = torch.cat((weights_RK, free_RE, torch.zeros(len(x_RD), _SAID)), dim=1)
        return torch.cat((x_RD, told_RX.contiguous().view(x_RD.dtype)), dim=1)

    def compute(self, layer: int, sent: Dispatched, hidden: int) -> Tensor:
        """[N, X]: the weighted sums of what has come, and what is to be said about them."""
        dtype, choices = sent.x_ND.dtype, sent.ids_NK.shape[1]
        x_ND, told_NX = sent.x_ND[:, :hidden].contiguous(), sent.x_ND[:, hidden:].contiguous().view(torch.float32)
        weights_NK, logits_NE = told_NX[:, :choices].contiguous(), None
        if self.lossy:
            logits_NE = told_NX[:, choices:-_SAID].contiguous()
        out_NX = torch.zeros_like(sent.x_ND)
        rows = RoutedRows(layer, x_ND, sent.ids_NK, weights_NK, logits_NE)
        out_NX[:, :hidden] = self._local.apply(rows, torch.zeros_like(x_ND))
        replaced = self._local.substitutions() if self.lossy else None
        if replaced is not None:
            mass_N = torch.from_numpy(replaced.mass_T).float()
            out_NX[:, hidden] = torch.from_numpy(replaced.slots_T).to(dtype)
            out_NX[:, hidden + 1] = mass_N.to(dtype)
            out_NX[:, hidden + 2] = (mass_N - mass_N.to(dtype).float()).to(dtype)
        return out_NX

    def hear(self, out_RX: Tensor, hidden: int, own_R: Tensor) -> Tensor:
        """[R, D] of what came back, for the own rows at the places `own_R` of the step."""
        if self.lossy:
            said_R3 = out_RX[:, hidden : hidden + _SAID].float()
            said_R2 = torch.stack((said_R3[:, 0], said_R3[:, 1] + said_R3[:, 2]), dim=1)
            self._replaced_T2.index_add_(0, own_R, said_R2)
        return out_RX[:, :hidden].contiguous()

    def substitutions(self) -> Substitutions | None:
        """Of this rank's own rows, wherever they were computed."""
        slots_T, mass_T = self._replaced_T2.T.numpy()
        return Substitutions(slots_T, mass_T) if slots_T.any() else None
