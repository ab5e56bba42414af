"""How far a token's counts are to be believed: empirical Bayes, one strength a layer.

A token's expected share on a device is (activations + strength * prior share) / (all + strength): a Dirichlet prior
around what tokens do that are met in one sequence only, for those that were never met are of their kind, and rare ones
next to it. Its strength is the one that tells best what a token does in a sequence from what it did
in all the others, so that a token met in one text alone counts for as little as it should.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

from smoe.clustering.groups import TokenGroups

Array = npt.NDArray[Any]

WEAKEST, STRONGEST = 0.25, 4096.0
"""In activations."""
FEW = 32.0
"""Tokens."""
MAX_PAIRS = 100_000
_TINY = 1e-9


def newcomers_share(groups: TokenGroups, pairs_PG: Array, mean_G: Array, top_k: int) -> Array:
    """[G] f64: where tokens of one sequence only have their activations, each token counted once. `mean_G` of all
    tokens stands in where there are few."""
    lone = np.bincount(groups.token_of_pair, minlength=len(groups.token_ids)) == 1
    pairs = groups.token_start[lone]
    shares = pairs_PG[pairs] / (groups.pair_occurrences[pairs] * float(top_k))[:, None]
    return np.asarray((shares.sum(axis=0) + FEW * mean_G) / (len(pairs) + FEW), dtype=np.float64)


def expected_shares(counts_RG: Array, activations_R: Array, prior_G: Array, strength: float) -> Array:
    """[R, G] f64. With replicas a row sums to more than one."""
    return np.asarray((counts_RG + strength * prior_G) / (activations_R + strength)[:, None])


def fit_strength(groups: TokenGroups, pairs_PG: Array, tokens_RG: Array, prior_G: Array, top_k: int) -> float:
    """The strength of least log loss within a few per cent; a (token, sequence) pair is judged by the token's other
    sequences."""
    stride = -(-len(pairs_PG) // MAX_PAIRS)
    token = groups.token_of_pair[::stride]
    pairs = pairs_PG[::stride].astype(np.float64)
    activations = groups.pair_occurrences[::stride] * float(top_k)
    others = tokens_RG[token] - pairs
    others_total = groups.occurrences[token] * float(top_k) - activations
    known = others_total > 0  # a pair without others gives the prior whatever the strength is
    if not known.any():
        return STRONGEST
    pairs, activations, others, others_total = (v[known] for v in (pairs, activations, others, others_total))

    def loss(log_strength: float) -> float:
        return -float(np.sum(_log_likelihood(pairs, activations, others, others_total, prior_G, np.exp(log_strength))))

    bounds = (np.log(WEAKEST), np.log(STRONGEST))
    return float(np.exp(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 0.03}).x))


def _log_likelihood(
    pairs: Array, activations: Array, others: Array, others_total: Array, prior_G: Array, strength: float
) -> Array:
    """Each device is a yes or no of its own, which holds with replicas as without."""
    share = np.clip(expected_shares(others, others_total, prior_G, strength), _TINY, 1 - _TINY)
    return np.asarray(pairs * np.log(share) + (activations[:, None] - pairs) * np.log1p(-share))
