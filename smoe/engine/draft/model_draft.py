"""Another, smaller model speaks ahead, with rows of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from smoe.core.step import SpanPlan
from smoe.engine.draft.loop import DraftLoop
from smoe.engine.draft.protocol import Proposal
from smoe.engine.states import RecurrentStates, Saved
from smoe.models.bank import ExpertBank


@dataclass(slots=True)
class _Seen:
    """`rows` are filled with what is known; `drafted` more behind them with what has been proposed."""

    rows: int = 0
    drafted: int = 0


class ModelDraft:
    """Its rows are at the places that the sequences have in the model's own arena. What it has not seen of a sequence
    (the prompt, tokens that the model put in its place) it computes first, `chunk` tokens at a time."""

    def __init__(self, loop: DraftLoop, bank: ExpertBank, states: RecurrentStates, *, context: int, chunk: int) -> None:
        self._loop, self._bank, self._states = loop, bank, states
        self._context, self._chunk = context, chunk
        self._seen: dict[str, _Seen] = {}

    def propose(self, spans: Sequence[SpanPlan], known: Sequence[Sequence[int]], limits: Sequence[int]) -> Proposal:
        limits = [max(0, min(limit, self._context - len(own))) for limit, own in zip(limits, known, strict=True)]
        first = []
        for span, own, limit in zip(spans, known, limits, strict=True):
            seen = self._seen.setdefault(span.request_id, _Seen())
            seen.drafted = 0
            while limit and len(own) - seen.rows > (1 if self._states else self._chunk):
                piece = own[seen.rows : min(seen.rows + self._chunk, len(own) - 1)]
                self._loop.fill(span, piece, seen.rows)
                seen.rows += len(piece)
            first.append((own[seen.rows :], seen.rows))
        wanted = [i for i, limit in enumerate(limits) if limit]
        proposal = self._run(spans, limits, first, wanted)
        for i in wanted:
            seen = self._seen[spans[i].request_id]
            if not self._states:
                seen.rows, seen.drafted = len(known[i]), max(0, len(proposal.tokens[i]) - 1)
        return proposal

    def accepted(self, spans: Sequence[SpanPlan], counts: Sequence[int]) -> None:
        for span, count in zip(spans, counts, strict=True):
            seen = self._seen[span.request_id]
            seen.rows += min(count, seen.drafted)
            seen.drafted = 0

    def forget(self, request_id: str) -> None:
        self._seen.pop(request_id, None)

    def close(self) -> None:
        self._bank.close()

    def _run(
        self,
        spans: Sequence[SpanPlan],
        limits: Sequence[int],
        first: Sequence[tuple[Sequence[int], int]],
        wanted: Sequence[int],
    ) -> Proposal:
        if not self._states:
            return self._loop.run(spans, limits, first)
        # A recurrent state cannot be cut back to what is kept: it stays before all that this window adds.
        own = [spans[i] for i in wanted]
        saved: Saved = self._states.save(own)
        proposal = self._loop.run(spans, limits, first)
        self._states.restore(own, saved)
        return proposal
