"""Whether to draft now and how far: drafting stops while it does not pay, and is tried again later."""

import logging
from collections.abc import Callable

from smoe.engine.draft.depth import Depth, Step

log = logging.getLogger(__name__)

_NEW = 0.2  # weight of a new step in the moving averages of time a token
_WINDOWS = 8  # before they are compared
_PLAIN = 3  # steps without a draft that the first comparison rests on
_REFRESH = 64  # windows after which another step without a draft is taken
_RETRY, _MAX_RETRY = 256, 8192  # tokens without a draft before it is tried again; doubled each time that it fails


class Pace:
    """Of an engine: sequences that decode together make windows of their own cost, so each number of them (to a power
    of two) is judged apart. Times come in with the steps."""

    def __init__(self, depth: Callable[[], Depth], *, auto_off: bool) -> None:
        self._make_depth, self._auto_off = depth, auto_off
        self._regimes: dict[int, _Regime] = {}
        self.most = depth().most
        self.pauses = 0

    def depth(self, sequences: int) -> int:
        """Tokens to draft for each of so many sequences; 0 for none now."""
        return self._regime(sequences).depth()

    def note(self, step: Step) -> None:
        regime = self._regime(step.sequences)
        paused = regime.paused
        regime.note(step)
        if regime.paused and not paused:
            self.pauses += 1
            log.info("%s", regime.verdict(step.sequences))

    def _regime(self, sequences: int) -> "_Regime":
        key = sequences.bit_length()
        if key not in self._regimes:
            self._regimes[key] = _Regime(self._make_depth(), auto_off=self._auto_off)
        return self._regimes[key]


class _Regime:
    def __init__(self, depth: Depth, *, auto_off: bool) -> None:
        self._depth, self._auto_off = depth, auto_off
        self.paused = False
        self._plain_s = self._drafted_s = 0.0
        self._num_plain = self._windows = 0
        self._tokens_paused, self._retry = 0, _RETRY

    def depth(self) -> int:
        if self._auto_off and (self.paused or self._wants_plain()):
            return 0
        return self._depth.choose()

    def note(self, step: Step) -> None:
        self._depth.note(step)
        if not self._auto_off:
            return
        if step.depth == 0:
            self._note_plain(step)
        else:
            self._note_drafted(step)

    def verdict(self, sequences: int) -> str:
        return (
            f"drafting does not pay with {sequences} sequences: {1e3 * self._drafted_s:.2f} ms a token, "
            f"{1e3 * self._plain_s:.2f} ms without; off for {self._retry // 2} tokens"
        )

    def _wants_plain(self) -> bool:
        """Once a few windows have run, and then now and again: what it costs without a draft."""
        if self._num_plain < _PLAIN:
            return self._windows >= _WINDOWS // 2
        return self._windows >= _REFRESH * (self._num_plain - _PLAIN + 1)

    def _note_plain(self, step: Step) -> None:
        self._num_plain += 1
        new = max(_NEW, 1 / self._num_plain)
        self._plain_s += new * (step.seconds_a_token - self._plain_s)
        if self.paused:
            self._tokens_paused += 1
            if self._tokens_paused >= self._retry // 2:
                self.paused = False
                self._windows, self._num_plain = 0, _PLAIN

    def _note_drafted(self, step: Step) -> None:
        self._windows += 1
        new = max(_NEW, 1 / self._windows)
        self._drafted_s += new * (step.seconds_a_token - self._drafted_s)
        if self._windows < _WINDOWS or self._num_plain < _PLAIN:
            return
        if self._drafted_s > self._plain_s:
            self.paused, self._tokens_paused = True, 0
            self._retry = min(2 * self._retry, 2 * _MAX_RETRY)
        elif self._windows >= _REFRESH:
            self._retry = _RETRY
