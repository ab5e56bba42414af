"""How gate weight is spread over a token's experts, which says what a threshold on it reaches."""

from dataclasses import dataclass

import numpy as np

from smoe.core.route_trace import Array

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True)
class GateWeights:
    """`quantiles[r][q]`: quantile QUANTILES[q] of the weight of rank r (0 is the heaviest); a token's weights sum to
    1. `reached` is the share of choices that weigh at least `threshold`, and `reached_by_rank` the same by rank."""

    quantiles: list[list[float]]
    threshold: float
    reached: float
    reached_by_rank: list[float]


def gate_weights(weights_LTK: Array, threshold: float) -> GateWeights:
    """From weights in any order, normalised or not, over layers and tokens."""
    rows_NK = weights_LTK.reshape(-1, weights_LTK.shape[-1]).astype(np.float64)
    rows_NK = -np.sort(-rows_NK / rows_NK.sum(axis=1, keepdims=True), axis=1)
    above_NK = rows_NK >= threshold
    return GateWeights(
        quantiles=np.quantile(rows_NK, QUANTILES, axis=0).T.tolist(),
        threshold=threshold,
        reached=float(above_NK.mean()),
        reached_by_rank=above_NK.mean(axis=0).tolist(),
    )
