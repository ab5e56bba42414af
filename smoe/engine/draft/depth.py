"""How many tokens to draft: a fixed number, or the one that measured acceptance and costs make the fastest."""

from dataclasses import dataclass
from typing import Protocol

_START = 4
_NEW = 0.1  # weight of a new acceptance in its average
_FORGET = 0.95  # of the past costs, at each new one
_EXPLORE_EVERY = 16  # windows: without other depths than the best now, costs could not be told apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step in which `sequences` sequences decoded and nothing else ran. `depth` is what was asked for, 0 without
    a draft; `proposed` and `kept` are drafted tokens over all sequences. Of experts that travel, the time in which
    some did and in which a pass waited, and how many were prefetched and how many of those, at last, in vain."""

    sequences: int
    depth: int
    proposed: int
    kept: int
    draft_s: float
    verify_s: float
    transfer_s: float = 0.0
    wait_s: float = 0.0
    prefetched: int = 0
    wasted: int = 0

    @property
    def seconds_a_token(self) -> float:
        """As one sequence sees it."""
        return (self.draft_s + self.verify_s) * self.sequences / (self.sequences + self.kept)


class Depth(Protocol):
    @property
    def most(self) -> int: ...

    def choose(self) -> int:
        """Tokens to draft in the next window, 1 to `most`."""
        ...

    def note(self, step: Step) -> None: ...


class FixedDepth:
    def __init__(self, tokens: int) -> None:
        self.most = tokens

    def choose(self) -> int:
        return self.most

    def note(self, step: Step) -> None:
        return


class OnlineDepth:
    """Maximises tokens over time of a window: (1 + a + a^2 + ... + a^k) / (k draft + verify(k + 1)).

    `a`, the share of drafted tokens kept, is a moving average; what a drafted token costs is one too, and what
    verification costs is a line in its rows, fitted with forgetting.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._best = min(_START, most)
        self._windows = 0
        self._acceptance = 0.8
        self._draft_s: float | None = None
        self._sums = [0.0] * 5  # weights, x, y, xx, xy of (rows a sequence, seconds)

    def choose(self) -> int:
        turn, place = divmod(self._windows, _EXPLORE_EVERY)
        if place == 1:
            return max(1, self._best // 2) if turn % 2 else min(self.most, max(2, 2 * self._best))
        if turn == 0 and place == 2:
            return max(1, self._best // 2)
        return self._best

    def note(self, step: Step) -> None:
        rows = 1 + step.proposed / step.sequences
        new = (1.0, rows, step.verify_s, rows * rows, rows * step.verify_s)
        self._sums = [_FORGET * old + value for old, value in zip(self._sums, new, strict=True)]
        if step.depth == 0 or step.proposed == 0:
            return
        self._windows += 1
        # A run ends at its first token that is not kept: those behind it say nothing.
        tried = min(step.proposed, step.kept + step.sequences)
        self._acceptance += _NEW * (step.kept / tried - self._acceptance)
        cost = step.draft_s * step.sequences / step.proposed
        self._draft_s = cost if self._draft_s is None else self._draft_s + _NEW * (cost - self._draft_s)
        self._best = max(range(1, self.most + 1), key=self._rate)

    def _rate(self, depth: int) -> float:
        """Tokens a second expected of windows of `depth`."""
        assert self._draft_s is not None
        run = sum(self._acceptance**place for place in range(depth + 1))
        return run / max(1e-9, depth * self._draft_s + self._verify_s(depth + 1))

    def _verify_s(self, rows: int) -> float:
        weight, x, y, xx, xy = self._sums
        spread = weight * xx - x * x
        slope = max(0.0, (weight * xy - x * y) / spread) if spread > 1e-9 * weight * weight else 0.0
        return max(0.0, y / weight + slope * (rows - x / weight))
