"""What one rank sends to which: the metadata of a dispatch, as its combine needs it again.

Shapes: R own rows, D hidden, K choices a row, G ranks, S rows to be computed somewhere, this rank itself included.
"""

from dataclasses import dataclass

import torch

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sends:
    """By ascending rank, and by row within one: `row_S` i64 is the own row, `ids_SK` i32 and `weights_SK` f32 are what
    to compute of it there, -1 and 0 in place of other choices. `counts[g]` of them are for rank g."""

    row_S: Tensor
    ids_SK: Tensor
    weights_SK: Tensor
    counts: tuple[int, ...]

    def to(self, rank: int) -> slice:
        first = sum(self.counts[:rank])
        return slice(first, first + self.counts[rank])


def plan_sends(ids_RK: Tensor, weights_RK: Tensor, device_RK: Tensor, ranks: int, *, dedup: bool) -> Sends:
    """`device_RK` i64 is the rank that computes each choice. Without `dedup`, a row for each choice."""
    ranks_G = torch.arange(ranks, device=device_RK.device)
    here_GRK = device_RK.unsqueeze(0) == ranks_G.view(-1, 1, 1)
    if dedup:
        rank_S, row_S = here_GRK.any(dim=2).nonzero(as_tuple=True)
        other_SK = ~here_GRK[rank_S, row_S]
    else:
        rank_S, row_S, choice_S = here_GRK.nonzero(as_tuple=True)
        other_SK = choice_S.unsqueeze(1) != torch.arange(device_RK.shape[1], device=device_RK.device)
    return Sends(
        row_S=row_S,
        ids_SK=ids_RK.index_select(0, row_S).masked_fill_(other_SK, -1),
        weights_SK=weights_RK.index_select(0, row_S).masked_fill_(other_SK, 0.0),
        counts=tuple(torch.bincount(rank_S, minlength=ranks).tolist()),
    )


def add_up(back_SD: Tensor, sends: Sends, residual_RD: Tensor) -> Tensor:
    """[R, D]: residual + the sums that came back for each row, in ascending rank (without de-duplication, of one rank
    in the order of the choices): in fp32, rounded once."""
    total_RD = torch.zeros_like(residual_RD, dtype=torch.float32)
    counts = list(sends.counts)
    for rows, part in zip(torch.split(sends.row_S, counts), torch.split(back_SD, counts), strict=True):
        total_RD.index_add_(0, rows, part.float())
    return (residual_RD.float() + total_RD).to(residual_RD.dtype)
