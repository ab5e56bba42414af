"""The policies that are compared, and why each is there."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Contender:
    """`policy` is what `parse_policies` reads. `keeps_first`: a token's heaviest expert is never substituted.

    `timed` ones are run on the inflated model too.
    """

    name: str
    policy: str
    keeps_first: bool = True
    timed: bool = False


WAIT = Contender("wait (lossless)", "evict=lru,miss=wait", timed=True)

LOSSY = (
    Contender("quality-first", "quality-first", timed=True),
    Contender("quality-first, no admission", "quality-first,admit=always"),
    Contender("quality-first, own weights", "quality-first,miss=substitute:own"),
    Contender("quality-first, threshold 0.8/k", "quality-first,miss=substitute:threshold=0.1", timed=True),
    Contender("speed-first", "speed-first", timed=True),
    Contender("speed-first, no admission", "speed-first,admit=always"),
    Contender("substitute all", "evict=frequency,miss=substitute:all,admit=background", keeps_first=False),
)
