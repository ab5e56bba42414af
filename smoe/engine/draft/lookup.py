"""A draft without a model: what came after the last tokens when they came before."""

from collections.abc import Sequence

from smoe.core.step import SpanPlan
from smoe.engine.draft.protocol import Proposal

LONGEST, SHORTEST = 3, 1  # tokens of the sequence's end that must have come before


class NgramDraft:
    """Continues the latest earlier occurrence of the last tokens, the longest such end first, in prompt and answer."""

    def __init__(self) -> None:
        self._indices: dict[str, _Index] = {}

    def propose(self, spans: Sequence[SpanPlan], known: Sequence[Sequence[int]], limits: Sequence[int]) -> Proposal:
        tokens = []
        for span, own, limit in zip(spans, known, limits, strict=True):
            index = self._indices.setdefault(span.request_id, _Index())
            tokens.append(index.continued(own, limit))
        return Proposal(tuple(tokens), tuple((None,) * len(run) for run in tokens))

    def accepted(self, spans: Sequence[SpanPlan], counts: Sequence[int]) -> None:
        return

    def forget(self, request_id: str) -> None:
        self._indices.pop(request_id, None)

    def close(self) -> None:
        self._indices.clear()


class _Index:
    """Where each short run of one sequence's tokens ended last; costs one look a new token."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}
        self._num_seen = 0

    def continued(self, known: Sequence[int], limit: int) -> tuple[int, ...]:
        # The sequence's own end is left out until more follows it: it would only find itself.
        for end in range(self._num_seen + 1, len(known)):
            for length in range(SHORTEST, min(LONGEST, end) + 1):
                self._ends[tuple(known[end - length : end])] = end
        self._num_seen = max(self._num_seen, len(known) - 1)
        for length in range(min(LONGEST, len(known)), SHORTEST - 1, -1):
            start = self._ends.get(tuple(known[len(known) - length :]))
            if start is not None:
                return self._run(known, start, limit)
        return ()

    @staticmethod
    def _run(known: Sequence[int], start: int, limit: int) -> tuple[int, ...]:
        """Goes on into the run itself where it reaches the end, as something periodic does."""
        run: list[int] = []
        period = len(known) - start
        for place in range(limit):
            run.append(known[start + place] if place < period else run[place - period])
        return tuple(run)
