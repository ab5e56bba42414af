"""The chance that a drafted token is kept whose predecessors were, from what windows kept."""

from scipy.optimize import brentq

_SURE = 1 - 1e-6


def chance_of_keeping(*, drafted: int, kept: int, windows: int) -> float:
    """p with which windows of `drafted / windows` tokens keep `kept / windows` of them on average: the sum of p^i.

    How many windows were kept whole is not told; that each which was not ended with one refused token is.
    """
    if not kept or kept >= drafted:
        return float(kept > 0)
    length, mean = drafted / windows, kept / windows
    return float(brentq(lambda p: p * (1 - p**length) / (1 - p) - mean, 1e-9, _SURE)) if mean < length * _SURE else 1.0
