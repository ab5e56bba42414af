"""The model's own experts in 4 bits speak ahead; all else of it is the model itself."""

from collections.abc import Sequence

from smoe.core.step import SpanPlan
from smoe.engine.draft.loop import DraftLoop
from smoe.engine.draft.protocol import Proposal
from smoe.offload.draft_bank import Int4Bank


class SelfDraft:
    """Reads the model's rows in place and writes its own behind them: the sequence owns those, and verification writes
    them again. It carries recurrent states on; who verifies puts them back first. So it keeps nothing of a sequence.
    """

    def __init__(self, loop: DraftLoop, bank: Int4Bank) -> None:
        self._loop, self._bank = loop, bank

    def propose(self, spans: Sequence[SpanPlan], known: Sequence[Sequence[int]], limits: Sequence[int]) -> Proposal:
        return self._loop.run(spans, limits, [(span.token_ids, span.past) for span in spans])

    def accepted(self, spans: Sequence[SpanPlan], counts: Sequence[int]) -> None:
        return

    def forget(self, request_id: str) -> None:
        return

    def close(self) -> None:
        self._bank.close()
