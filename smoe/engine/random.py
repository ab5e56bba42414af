"""Random numbers that are functions of (seed, index), so that a replay draws the same ones in any batch."""

import numpy as np

_TOKENS, _SEEDS, _DRAFTS, _VERDICTS = range(4)  # second word of the Philox key: separate streams for separate uses


def uniform(seed: int, index: int) -> float:
    """In [0, 1) with 53 bits: the random number that chooses token `index` of a request with `seed`."""
    return (_word(seed, _TOKENS, index) >> 11) * 2.0**-53


def draft_uniform(seed: int, index: int) -> float:
    """As `uniform`: what a draft draws its guess at token `index` with."""
    return (_word(seed, _DRAFTS, index) >> 11) * 2.0**-53


def verdict_uniform(seed: int, index: int) -> float:
    """As `uniform`: what decides whether a guess at token `index` is kept."""
    return (_word(seed, _VERDICTS, index) >> 11) * 2.0**-53


def derive_seed(engine_seed: int, counter: int) -> int:
    """Seed in [0, 2^63) of the request number `counter` that came without one."""
    return _word(engine_seed, _SEEDS, counter) >> 1


def _word(seed: int, stream: int, counter: int) -> int:
    key = np.array([seed & (2**64 - 1), stream], dtype=np.uint64)
    return int(np.random.Philox(key=key, counter=counter).random_raw())
