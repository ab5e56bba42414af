"""Rows to the ranks that hold their experts, and the weighted sums back.

A row goes once to each rank that holds one or more of its experts (or, for comparison, once for each expert), with the
ids and weights to compute there; it comes back as one summed row. Shapes: R own rows, D hidden, K choices a row, G
ranks, S rows sent, N rows received. Ids are the model's expert ids everywhere; -1 stands for no choice.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from smoe.collectives.group import Group

Tensor = torch.Tensor

MAX_ROWS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """`x_ND`, `ids_NK` i32 and `weights_NK` f32 are to be computed here, by sending rank. The rest is for `combine`:
    own row of each row sent, in ascending rank and row, and how many went to and came from each rank. `rounds` is the
    most that any rank asked for."""

    x_ND: Tensor
    ids_NK: Tensor
    weights_NK: Tensor
    row_S: Tensor
    sent: tuple[int, ...]
    received: tuple[int, ...]
    rounds: int


Compute = Callable[[Dispatched], Tensor]
"""[N, D]: the weighted sums of what was received."""


class Dispatcher:
    """`dedup=False` sends a row once for each of its experts, as systems without de-duplication do.

    Of at most `max_rows` own rows at a time, so that a rank never receives more than `max_rows` of each other one.
    """

    def __init__(self, group: Group, *, dedup: bool = True, max_rows: int = MAX_ROWS) -> None:
        self._group, self._dedup, self._max_rows = group, dedup, max_rows

    def apply(
        self,
        x_RD: Tensor,
        ids_RK: Tensor,
        weights_RK: Tensor,
        device_RK: Tensor,
        residual_RD: Tensor,
        compute: Compute,
    ) -> Tensor:
        """[R, D]: residual + the sums of each row's experts, computed where `device_RK` says. Collective."""
        rows, done, parts = self._max_rows, 0, []
        wanted = total = max(1, -(-len(x_RD) // rows))
        while done < total:
            own = slice(done * rows, (done + 1) * rows)
            sent = self.dispatch(x_RD[own], ids_RK[own], weights_RK[own], device_RK[own], rounds=wanted)
            parts.append(self.combine(compute(sent), sent, residual_RD[own]))
            done, total = done + 1, max(total, sent.rounds)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def dispatch(
        self, x_RD: Tensor, ids_RK: Tensor, weights_RK: Tensor, device_RK: Tensor, *, rounds: int = 1
    ) -> Dispatched:
        """`device_RK` i64 is the place of the rank that computes each choice. Collective; R may be 0."""
        group = self._group
        rank_S, row_S, chosen_SK = self._sends(device_RK)
        counts_G = torch.bincount(rank_S, minlength=group.size)
        told_G2 = torch.stack((counts_G, torch.full_like(counts_G, rounds)), dim=1)
        heard_G2 = group.all_to_all(told_G2, [1] * group.size, [1] * group.size, "sizes")
        sent, (received, rounds_G) = tuple(counts_G.tolist()), heard_G2.T.tolist()
        ids_SK = ids_RK.index_select(0, row_S).masked_fill(~chosen_SK, -1)
        weights_SK = weights_RK.index_select(0, row_S).masked_fill(~chosen_SK, 0.0)
        packed = pack(x_RD.index_select(0, row_S), ids_SK, weights_SK)
        arrived = group.all_to_all(packed, sent, received, "dispatch")
        x_ND, ids_NK, weights_NK = unpack(arrived, x_RD.shape[1], x_RD.dtype, ids_RK.shape[1])
        return Dispatched(
            x_ND=x_ND,
            ids_NK=ids_NK,
            weights_NK=weights_NK,
            row_S=row_S,
            sent=sent,
            received=tuple(received),
            rounds=max(rounds_G),
        )

    def combine(self, sums_ND: Tensor, dispatched: Dispatched, residual_RD: Tensor) -> Tensor:
        """[R, D]: residual + the sums of each row's experts, added in ascending rank; without de-duplication, of one
        rank in the order of the choices.

        `sums_ND` are the weighted sums of what was received. Collective.
        """
        back_SD = self._group.all_to_all(sums_ND, dispatched.received, dispatched.sent, "combine")
        total_RD = torch.zeros_like(residual_RD, dtype=torch.float32)
        rows, parts = (torch.split(tensor, list(dispatched.sent)) for tensor in (dispatched.row_S, back_SD))
        for rows_of_rank, part in zip(rows, parts, strict=True):
            total_RD.index_add_(0, rows_of_rank, part.float())
        return (residual_RD.float() + total_RD).to(residual_RD.dtype)

    def _sends(self, device_RK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """rank_S ascending, row_S ascending within a rank, both i64; chosen_SK bool: the choices a send is for."""
        choices = device_RK.shape[1]
        ranks_G = torch.arange(self._group.size, device=device_RK.device)
        here_GRK = device_RK.unsqueeze(0) == ranks_G.view(-1, 1, 1)
        if self._dedup:
            rank_S, row_S = here_GRK.any(dim=2).nonzero(as_tuple=True)
            return rank_S, row_S, here_GRK[rank_S, row_S]
        rank_S, row_S, choice_S = here_GRK.nonzero(as_tuple=True)
        return rank_S, row_S, torch.nn.functional.one_hot(choice_S, choices).bool()


def row_bytes(hidden: int, dtype: torch.dtype, choices: int) -> int:
    """What one dispatched row weighs on the wire."""
    return hidden * dtype.itemsize + choices * (torch.int16.itemsize + torch.float32.itemsize)


def pack(x_SD: Tensor, ids_SK: Tensor, weights_SK: Tensor) -> Tensor:
    """[S, row_bytes] u8: one message for values, ids (as i16) and weights."""
    parts = (x_SD, ids_SK.to(torch.int16), weights_SK)
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=1)


def unpack(packed: Tensor, hidden: int, dtype: torch.dtype, choices: int) -> tuple[Tensor, Tensor, Tensor]:
    sizes = [hidden * dtype.itemsize, choices * torch.int16.itemsize, choices * torch.float32.itemsize]
    # Not `contiguous`, which hands back parts of no or one row as they are: with strides that no wider dtype has.
    parts = torch.split(packed, sizes, dim=1)
    x, ids, weights = (part.clone(memory_format=torch.contiguous_format) for part in parts)
    return x.view(dtype), ids.view(torch.int16).to(torch.int32), weights.view(torch.float32)
