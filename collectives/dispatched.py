"""Rows that came to be computed here. Shapes: N rows, D hidden, K choices a row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """`ids_NK` i32 (-1: no choice for this rank) and `weights_NK` f32 are what to compute of `x_ND`, whose memory may
    be written to once that is done."""

    x_ND: Tensor
    ids_NK: Tensor
    weights_NK: Tensor

    @classmethod
    def joined(cls, parts: Sequence["Dispatched"]) -> "Dispatched":
        if len(parts) == 1:
            return parts[0]
        return cls(
            x_ND=torch.cat([part.x_ND for part in parts]),
            ids_NK=torch.cat([part.ids_NK for part in parts]),
            weights_NK=torch.cat([part.weights_NK for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.x_ND)


Compute = Callable[[Dispatched], Tensor]
"""[N, D]: the weighted sums of rows to compute here. What it gives for a row does not depend on the others."""


def computed(rows: Dispatched, compute: Compute) -> Tensor:
    return compute(rows) if len(rows) else rows.x_ND
