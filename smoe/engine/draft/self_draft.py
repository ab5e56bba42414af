"""The model's own experts in 4 bits speak ahead; all else of it is the model itself."""

from collections.abc import Sequence

from smoe.core.step import SpanPlan
from smoe.engine.draft.loop import DraftLoop
from smoe.engine.draft.protocol import Proposal
from smoe.offload.draft_bank import Int4Bank
from smoe.offload.drafting import DraftWindow


class SelfDraft:
    """Reads the model's rows in place and writes its own behind them: the sequence owns those, and verification writes
    them again. It carries recurrent states on; who verifies puts them back first. So it keeps nothing of a sequence.
    """

    def __init__(self, loop: DraftLoop, bank: Int4Bank) -> None:
        self.loop, self.bank = loop, bank

    def use(self, window: DraftWindow) -> None:
        """From the next proposal on: what its routing does."""
        self.loop.window, self.bank.routed = window, window.routed

    def propose(self, spans: Sequence[SpanPlan], known: Sequence[Sequence[int]], limits: Sequence[int]) -> Proposal:
        return self.loop.run(spans, limits, [(span.token_ids, span.past) for span in spans])

    def accepted(self, spans: Sequence[SpanPlan], counts: Sequence[int]) -> None:
        return

    def forget(self, request_id: str) -> None:
        return

    def close(self) -> None:
        self.bank.close()
