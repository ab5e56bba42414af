"""Which drafted tokens the model keeps, and the one that it adds. Shapes: N rows of one sequence, V vocabulary."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from smoe.core.sampling import SamplingParams
from smoe.core.step import SampledToken
from smoe.engine.random import uniform, verdict_uniform
from smoe.engine.sampler import Draw, choose, draw, numeric_error, token_logprob, token_mass

Array = npt.NDArray[Any]


def accept_run(
    logits_NV: Array, best_N: Sequence[int], by: Draw, drafted: Sequence[int], mass: Sequence[Array | None]
) -> tuple[SampledToken, ...]:
    """The drafted tokens up to the first that is not kept, then one of the model's own; N = len(drafted) + 1.

    `best_N` are the places of the rows' maxima. Row n holds the model's logits after drafted[:n], and mass[n] is what
    drafted[n] was drawn from (see Proposal). Greedy, a token is kept while it is the model's choice. Otherwise it is
    kept with probability min(1, p / q) and else drawn from what p has more than q, so that every token has the
    distribution p of the model alone. A row that is not finite ends the run with its error.
    """
    params, seed, index = by
    tokens: list[SampledToken] = []
    for place, (row_V, best) in enumerate(zip(logits_NV, best_N, strict=True)):
        at = (params, seed, index + place)
        if place == len(drafted):
            tokens.append(choose(row_V, best, at))
            break
        guess = drafted[place]
        token = choose(row_V, best, at) if params.greedy else _judge(row_V, best, at, guess, mass[place])
        tokens.append(token)
        if token.token_id != guess:
            break
    return tuple(tokens)


def _judge(logits_V: Array, best: int, by: Draw, guess: int, mass_V: Array | None) -> SampledToken:
    """The guess, or another token instead of it."""
    params, seed, index = by
    if (error := numeric_error(logits_V, best, index)) is not None:
        return error
    p_V = normalised_mass(logits_V, params)
    q = 1.0 if mass_V is None else float(mass_V[guess])
    token_id = guess
    if verdict_uniform(seed, index) * q >= p_V[guess]:
        rest_V = p_V.copy() if mass_V is None else np.maximum(p_V - mass_V, 0)
        rest_V[guess] = 0
        # Nothing is left only where both agree up to rounding.
        token_id = draw(rest_V if rest_V.any() else p_V, uniform(seed, index))
    return SampledToken(token_id, token_logprob(logits_V, token_id, params))


def normalised_mass(logits_V: Array, params: SamplingParams) -> Array:
    """The distribution that a token is drawn from, fp64 [V]."""
    mass_V: Array = token_mass(logits_V, params).astype(np.float64)
    mass_V /= mass_V.sum()
    return mass_V
