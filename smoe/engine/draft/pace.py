"""Whether to draft now and how far: drafting stops while it does not pay, and is tried again later."""

import logging
from collections.abc import Callable

from smoe.engine.draft.depth import Depth, Step
from smoe.engine.draft.gain import Gain

log = logging.getLogger(__name__)

_WINDOWS = 8  # before times are compared
_FEW, _CLEAR = 4, 2.0  # windows that are enough where a draft makes tokens slower by this factor
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

    def note(self, step: Step) -> float:
        """Seconds that the step's draft has saved, as far as that is known."""
        regime = self._regime(step.sequences)
        paused = regime.paused
        regime.note(step)
        if regime.paused and not paused:
            self.pauses += 1
            log.info("%s", regime.verdict(step.sequences))
        return regime.gain.saved_s(step)

    def _regime(self, sequences: int) -> "_Regime":
        key = sequences.bit_length()
        if key not in self._regimes:
            self._regimes[key] = _Regime(self._make_depth(), auto_off=self._auto_off)
        return self._regimes[key]


class _Regime:
    def __init__(self, depth: Depth, *, auto_off: bool) -> None:
        self._depth, self._auto_off = depth, auto_off
        self.gain, self.paused = Gain(), False
        self._tokens_paused, self._retry = 0, _RETRY
        self._refreshed = 0

    def depth(self) -> int:
        if self._auto_off and (self.paused or self._wants_plain()):
            return 0
        return self._depth.choose()

    def note(self, step: Step) -> None:
        self._depth.note(step)
        self.gain.note(step)
        if not self._auto_off:
            return
        if step.depth > 0:
            self._judge()
        elif self.paused:
            self._tokens_paused += 1
            if self._tokens_paused >= self._retry // 2:
                self.paused, self._refreshed = False, 0
                self.gain.forget_drafted()
        elif self._windows:
            self._refreshed = self._windows

    def verdict(self, sequences: int) -> str:
        who = "1 sequence" if sequences == 1 else f"{sequences} sequences"
        return f"drafting does not pay with {who}: {self.gain.describe()}; off for {self._retry // 2} tokens"

    @property
    def _windows(self) -> int:
        """With a draft, since it was last taken up."""
        return self.gain.drafted_s.count

    def _wants_plain(self) -> bool:
        """Once a few windows have run, and then now and again: what it costs without a draft."""
        if self.gain.plain_s.count < _PLAIN:
            return self._windows >= _FEW
        return self._windows >= self._refreshed + _REFRESH

    def _judge(self) -> None:
        windows, gain = self._windows, self.gain
        if gain.plain_s.count < _PLAIN or windows < _FEW:
            return
        if gain.ratio < (1 if windows >= _WINDOWS else 1 / _CLEAR):
            self.paused, self._tokens_paused = True, 0
            self._retry = min(2 * self._retry, 2 * _MAX_RETRY)
        elif windows >= _REFRESH:
            self._retry = _RETRY
