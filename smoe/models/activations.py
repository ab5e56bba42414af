"""Activations whose bits do not depend on where in a tensor a value lies."""

import torch


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + exp(-x)), elementwise, in x's dtype.

    torch.sigmoid (like silu and softplus) rounds the last few values of a tensor differently from the others, so a
    row's result would depend on the rows beside it; exp and division do not.
    """
    return torch.exp(-x).add_(1.0).reciprocal_()
