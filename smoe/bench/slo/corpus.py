"""Packaged texts as one stream of tokens, to cut prompts from."""

from collections.abc import Callable

from smoe.bench.quality.texts import DOMAINS, heldout_tokens
from smoe.bench.speculation.prompts import GSM8K, gsm8k_problems
from smoe.core.errors import ConfigError

MIXED = "mixed"
SETS = (MIXED, *DOMAINS, GSM8K)


def corpus(name: str, encode: Callable[[str], list[int]]) -> list[int]:
    """`mixed` is all of them, a piece of each in turn. Raises ConfigError."""
    if name not in SETS:
        raise ConfigError("prompts", name, f"one of {', '.join(SETS)}")
    if name == GSM8K:
        return [token for problem in gsm8k_problems() for token in encode(f"{problem}\n")]
    texts = heldout_tokens(encode)
    if name != MIXED:
        return texts[name]
    piece, longest = 512, max(map(len, texts.values()))
    return [token for at in range(0, longest, piece) for ids in texts.values() for token in ids[at : at + piece]]
