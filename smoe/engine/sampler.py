"""Choose the next token of each row, on the host. Shapes: M rows, V vocabulary."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from smoe.core.request import TokenLogprob
from smoe.core.sampling import SamplingParams
from smoe.core.step import SampledToken
from smoe.engine.random import uniform

Array = npt.NDArray[Any]
Draw = tuple[SamplingParams, int, int]
"""(parameters, seed, index of the token in its request) of one row."""


def sample(logits_MV: torch.Tensor, draws: Sequence[Draw]) -> list[SampledToken]:
    """One token a row from fp32 logits; a row whose maximum is not finite gets a `numeric` error instead.

    A row's token depends on that row alone.
    """
    rows_MV, best_M = on_host(logits_MV)
    return [choose(row_V, best, each) for row_V, best, each in zip(rows_MV, best_M, draws, strict=True)]


def on_host(logits_MV: torch.Tensor) -> tuple[Array, list[int]]:
    """Rows as numpy has them, and of each the place of its maximum. NaN wins every maximum, so `choose` detects it at
    no cost."""
    rows_MV: Array = logits_MV.cpu().numpy()
    return rows_MV, rows_MV.argmax(-1).tolist()


def choose(logits_V: Array, best: int, by: Draw) -> SampledToken:
    """One row's token."""
    params, seed, index = by
    if (error := numeric_error(logits_V, best, index)) is not None:
        return error
    token_id = best
    if params.temperature > 0:
        token_id = draw(token_mass(logits_V, params), uniform(seed, index))
    return SampledToken(token_id, token_logprob(logits_V, token_id, params))


def numeric_error(logits_V: Array, best: int, index: int) -> SampledToken | None:
    """What is said instead of a token of a row whose maximum, at `best`, is not finite."""
    if math.isfinite(logits_V[best]):
        return None
    error = f"numeric: logits of token {index} of the answer are not finite (maximum {logits_V[best]})"
    return SampledToken(None, error=error)


def token_logprob(logits_V: Array, token_id: int, params: SamplingParams) -> TokenLogprob | None:
    """None when the request asks for none."""
    return None if params.logprobs is None else _logprob(logits_V, token_id, params.logprobs)


def token_mass(logits_V: Array, params: SamplingParams) -> Array:
    """The distribution that is drawn from, up to a factor, fp32 [V]: temperature, then min-p, top-k, and top-p last.

    Tokens as likely as the last one kept are kept as well, so ties cannot depend on a sorting order.
    """
    x_V = (logits_V - logits_V.max()) / np.float32(params.temperature)
    mass_V: Array = np.exp(x_V)
    least = np.float32(params.min_p)  # of a maximum of exp(0)
    if 0 < params.top_k < len(mass_V):
        least = max(least, np.partition(mass_V, len(mass_V) - params.top_k)[-params.top_k])
    if least > 0:
        mass_V[mass_V < least] = 0
    if params.top_p < 1:
        mass_V[mass_V < _least_of_nucleus(mass_V, params.top_p)] = 0
    return mass_V


def draw(mass_V: Array, u: float) -> int:
    """The token at share `u` in [0, 1) of the mass, in order of token id."""
    below_V = np.cumsum(mass_V.astype(np.float64))
    # Searching to the right of a target below the total can only land on a token that has mass.
    target = min(u * below_V[-1], np.nextafter(below_V[-1], 0.0))
    return int(below_V.searchsorted(target, side="right"))


def _least_of_nucleus(mass_V: Array, top_p: float) -> np.float32:
    """Mass of the last token of the smallest set of likely tokens whose mass reaches top_p of all."""
    total = mass_V.sum(dtype=np.float64)
    # Tokens below (1 - top_p) / V of it cannot weigh 1 - top_p together, so they all lie outside: no full sort.
    likely = np.sort(mass_V[mass_V >= np.float32((1 - top_p) * total / len(mass_V))])[::-1]
    last = np.cumsum(likely.astype(np.float64)).searchsorted(top_p * total)
    least: np.float32 = likely[min(int(last), len(likely) - 1)]
    return least


def _logprob(logits_V: Array, token_id: int, num_top: int) -> TokenLogprob:
    x_V = logits_V.astype(np.float64)
    logprobs_V = x_V - x_V.max()
    logprobs_V -= np.log(np.exp(logprobs_V).sum())
    top: tuple[tuple[int, float], ...] = ()
    if num_top > 0:
        kth = np.partition(logprobs_V, -min(num_top, len(logprobs_V)))[-min(num_top, len(logprobs_V))]
        candidates = np.flatnonzero(logprobs_V >= kth)
        best = candidates[np.argsort(-logprobs_V[candidates], kind="stable")[:num_top]]
        top = tuple(zip(best.tolist(), logprobs_V[best].tolist(), strict=True))
    return TokenLogprob(token_id, float(logprobs_V[token_id]), top)
