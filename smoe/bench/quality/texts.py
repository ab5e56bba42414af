"""Held-out texts as token windows, and streams that switch between domains."""

import gzip
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from smoe.core.errors import ConfigError

DOMAINS = ("prose", "dialogue", "code", "maths")
SWITCHING = "switching"
_LINE_STARTS = re.compile(r"(?<=\S)(?=\n)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Tokens scored together; `domain` is one of DOMAINS, or SWITCHING. `switches` are the positions of the tokens
    that begin another domain's segment."""

    domain: str
    token_ids: tuple[int, ...]
    switches: tuple[int, ...] = ()


def heldout_tokens(encode: Callable[[str], list[int]]) -> dict[str, list[int]]:
    """Every packaged text, whole, by domain. Line by line, because a tokenizer warns of texts beyond the context."""
    folder = resources.files("smoe") / "assets" / "heldout"
    texts = {name: gzip.decompress((folder / f"{name}.txt.gz").read_bytes()).decode() for name in DOMAINS}
    return {name: [i for line in _LINE_STARTS.split(text) for i in encode(line)] for name, text in texts.items()}


def windows(token_ids: Sequence[int], count: int, length: int) -> list[tuple[int, ...]]:
    """`count` windows of `length` tokens, spread evenly, none overlapping. Raises ConfigError for a text too short."""
    if count * length > len(token_ids):
        raise ConfigError("windows", f"{count} of {length} tokens", f"the text has {len(token_ids)} tokens")
    stride = len(token_ids) // count
    return [tuple(token_ids[i * stride : i * stride + length]) for i in range(count)]


def domain_texts(tokens: Mapping[str, Sequence[int]], count: int, length: int) -> list[Text]:
    """`count` texts of each domain, from the first half of its tokens; a domain's texts follow each other."""
    return [
        Text(domain=domain, token_ids=window)
        for domain, ids in tokens.items()
        for window in windows(ids[: len(ids) // 2], count, length)
    ]


def switching_texts(tokens: Mapping[str, Sequence[int]], count: int, segments: int, length: int) -> list[Text]:
    """`count` streams of `segments` segments of `length` tokens, from the second halves.

    Streams begin with different domains and go round them, so that every segment is another domain's.
    """
    domains = list(tokens)
    pools = {
        domain: iter(windows(ids[len(ids) // 2 :], -(-count * segments // len(domains)) + count, length))
        for domain, ids in tokens.items()
    }
    texts = []
    for stream in range(count):
        order = [domains[(stream + i) % len(domains)] for i in range(segments)]
        pieces = [next(pools[domain]) for domain in order]
        ids = tuple(token for piece in pieces for token in piece)
        texts.append(Text(domain=SWITCHING, token_ids=ids, switches=tuple(range(length, segments * length, length))))
    return texts
