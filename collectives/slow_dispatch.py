"""What Dispatcher.apply gives, one row after the other and without any exchange: the reference that it must equal to
the bit.

Shapes: R rows, D hidden, K choices a row.
"""

import torch

from smoe.collectives.dispatched import Compute, Dispatched

Tensor = torch.Tensor


def slow_apply(
    x_RD: Tensor,
    ids_RK: Tensor,
    weights_RK: Tensor,
    device_RK: Tensor,
    residual_RD: Tensor,
    compute: Compute,
    *,
    dedup: bool = True,
) -> Tensor:
    """[R, D]: each row's sums by rank, each rounded to the rows' dtype, added in fp32 in ascending rank (without
    `dedup`, within a rank in the order of the choices), then to the residual, then rounded once."""
    out_RD = torch.empty_like(residual_RD)
    for row in range(len(x_RD)):
        total_D = torch.zeros(residual_RD.shape[1])
        for rank in sorted(set(device_RK[row].tolist())):
            here_K = device_RK[row] == rank
            for mask_K in [here_K] if dedup else _one_by_one(here_K):
                one = Dispatched(
                    x_ND=x_RD[row : row + 1],
                    ids_NK=ids_RK[row : row + 1].masked_fill(~mask_K, -1),
                    weights_NK=weights_RK[row : row + 1].masked_fill(~mask_K, 0.0),
                )
                total_D += compute(one)[0].float()
        out_RD[row] = residual_RD[row].float() + total_D
    return out_RD


def _one_by_one(mask_K: Tensor) -> list[Tensor]:
    choices_K = torch.arange(len(mask_K))
    return [choices_K == choice for choice in mask_K.nonzero().flatten().tolist()]
