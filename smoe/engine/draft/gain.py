"""What drafting brings, as measured: time a token with a draft and without one, and what explains the difference."""

from smoe.engine.draft.depth import Step

_NEW = 0.2  # weight of a new step in the moving averages


class Average:
    """Moves by _NEW of a difference, and at first is the mean of what it has seen."""

    def __init__(self) -> None:
        self.value, self.count = 0.0, 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += max(_NEW, 1 / self.count) * (value - self.value)


class Gain:
    """Of steps that drafted and of steps that did not, of a like number of sequences.

    `kept` is the share of drafted tokens that the model kept, `hidden` that of transfer time in which no pass waited,
    `wasted` that of prefetched experts that were not asked for; each only over steps in which there were any.
    """

    def __init__(self) -> None:
        self.plain_s, self.drafted_s = Average(), Average()
        self.kept, self.hidden, self.wasted = Average(), Average(), Average()

    @property
    def ratio(self) -> float:
        """Speed with a draft over that without; both must have been measured."""
        return self.plain_s.value / max(1e-12, self.drafted_s.value)

    def forget_drafted(self) -> None:
        """What a draft did is measured anew."""
        self.drafted_s, self.kept, self.hidden, self.wasted = Average(), Average(), Average(), Average()

    def note(self, step: Step) -> None:
        if step.depth == 0:
            self.plain_s.add(step.seconds_a_token)
            return
        self.drafted_s.add(step.seconds_a_token)
        for share, of, whole in (
            (self.kept, step.kept, step.proposed),
            (self.hidden, step.transfer_s - step.wait_s, step.transfer_s),
            (self.wasted, step.wasted, step.prefetched),
        ):
            if whole > 0:
                share.add(max(0.0, of / whole))

    def saved_s(self, step: Step) -> float:
        """Of a step that drafted: what its tokens take without a draft, less what they took; 0 while that is not known.
        Negative for a loss."""
        if step.depth == 0 or not self.plain_s.count:
            return 0.0
        tokens = (step.sequences + step.kept) / step.sequences
        return self.plain_s.value * tokens - step.draft_s - step.verify_s

    def describe(self) -> str:
        """All of it in words, on one line."""
        with_s, without_s = 1e3 * self.drafted_s.value, 1e3 * self.plain_s.value
        parts = [
            f"{with_s:.2f} ms a token, {without_s:.2f} ms without ({self.ratio:.2f}x)",
            f"{100 * self.kept.value:.0f} % of drafted tokens kept",
        ]
        if self.hidden.count:
            parts.append(f"{100 * self.hidden.value:.0f} % of transfer time hidden")
        if self.wasted.count:
            parts.append(f"{100 * self.wasted.value:.0f} % of prefetches wasted")
        return ", ".join(parts)
