"""The window of a step: what is drafted for its spans, and what became of it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from smoe.core.stats import DraftStats, ExpertStats
from smoe.core.step import SampledToken, SpanPlan, StepPlan
from smoe.engine.draft.accept import accept_run
from smoe.engine.draft.depth import Step
from smoe.engine.draft.pace import Pace
from smoe.engine.draft.protocol import Drafter

Array = npt.NDArray[Any]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Window:
    """`plan` is the step as it is verified: of each span, its drafted tokens follow its own. `mass[i]` is what those
    of span i were drawn from (see Proposal). `depth` is how many were asked for, 0 for none."""

    planned: tuple[SpanPlan, ...]
    plan: StepPlan
    depth: int
    drafted: tuple[tuple[int, ...], ...]
    mass: tuple[tuple[Array | None, ...], ...]
    began_s: float
    draft_s: float

    @property
    def num_drafted(self) -> int:
        return sum(map(len, self.drafted))


class Speculation:
    """`open` a window before the forward of a step, `judge` its spans after it, `settle` it at the end.

    A window that is not settled (its forward failed) has left no trace. Not thread-safe.
    """

    def __init__(
        self,
        drafter: Drafter,
        pace: Pace,
        clock: Clock = time.perf_counter,
        experts: Callable[[], ExpertStats] | None = None,
    ) -> None:
        """`experts` counts those that travel, unless all are resident."""
        self._drafter, self._pace, self._clock = drafter, pace, clock
        self._experts, self._seen = experts, ExpertStats()
        self._known: dict[str, list[int]] = {}

    @property
    def drafter(self) -> Drafter:
        return self._drafter

    def use(self, pace: Pace, drafter: Drafter | None = None) -> None:
        """From the next window on. A `drafter` that is given up is not closed."""
        self._pace, self._drafter = pace, drafter or self._drafter

    def open(self, plan: StepPlan) -> Window:
        """Drafts for the spans that may be answered by more than one token."""
        began = self._clock()
        self._note(plan.spans)
        wanted = [i for i, span in enumerate(plan.spans) if span.draft_limit > 0]
        depth = self._pace.depth(len(wanted)) if wanted else 0
        drafted: list[tuple[int, ...]] = [()] * len(plan.spans)
        mass: list[tuple[Array | None, ...]] = [()] * len(plan.spans)
        if depth == 0:
            return Window(plan.spans, plan, 0, tuple(drafted), tuple(mass), began, 0.0)
        spans = [plan.spans[i] for i in wanted]
        proposal = self._drafter.propose(
            spans, [self._known[span.request_id] for span in spans], [min(span.draft_limit, depth) for span in spans]
        )
        for i, run, run_mass in zip(wanted, proposal.tokens, proposal.mass, strict=True):
            drafted[i], mass[i] = run, run_mass
        verified = tuple(
            [
                replace(span, token_ids=span.token_ids + run) if run else span
                for span, run in zip(plan.spans, drafted, strict=True)
            ]
        )
        widened = StepPlan(spans=verified)
        draft_s = self._clock() - began
        return Window(plan.spans, widened, depth, tuple(drafted), tuple(mass), began, draft_s)

    def judge(self, window: Window, logits_MV: Array, best_M: Sequence[int]) -> tuple[tuple[SampledToken, ...], ...]:
        """Each span's answer, from the logits of the last own row and the drafted ones of every span that samples."""
        tokens: list[tuple[SampledToken, ...]] = []
        row = 0
        for span, run, mass in zip(window.plan.spans, window.drafted, window.mass, strict=True):
            if span.sample is None:
                tokens.append(())
                continue
            rows = slice(row, row + 1 + len(run))
            row = rows.stop
            by = (span.sample, span.seed, span.sample_index)
            tokens.append(accept_run(logits_MV[rows], best_M[rows], by, run, mass))
        return tuple(tokens)

    def settle(self, window: Window, tokens: Sequence[Sequence[SampledToken]]) -> DraftStats | None:
        """The step is over, and `tokens` are its answers. Counts, if anything was drafted."""
        spans = window.plan.spans
        kept = [max(0, len(answer) - 1) for answer in tokens]
        for span, answer in zip(spans, tokens, strict=True):
            self._known[span.request_id] += [token.token_id for token in answer if token.token_id is not None]
        proposed = [i for i, run in enumerate(window.drafted) if run]
        if proposed:
            self._drafter.accepted([spans[i] for i in proposed], [kept[i] for i in proposed])
        verify_s = self._clock() - window.began_s - window.draft_s
        travelled = self._travelled()
        step = Step(
            sequences=len(spans),
            depth=window.depth,
            proposed=window.num_drafted,
            kept=sum(kept),
            draft_s=window.draft_s,
            verify_s=verify_s,
            transfer_s=travelled.transfer_s,
            wait_s=travelled.wait_s,
            prefetched=travelled.prefetched,
            wasted=travelled.wasted,
        )
        pauses, saved_s = self._pace.pauses, 0.0
        # Prompt chunks, and decodes held to one token, would make the others' costs look like theirs.
        if all(span.draft_limit > 0 for span in window.planned):
            saved_s = self._pace.note(step)
        if window.depth == 0 and self._pace.pauses == pauses:
            return None
        return DraftStats(
            windows=int(window.num_drafted > 0),
            drafted=step.proposed,
            accepted=step.kept,
            draft_s=step.draft_s,
            verify_s=verify_s if window.num_drafted > 0 else 0.0,
            pauses=self._pace.pauses - pauses,
            saved_s=saved_s,
        )

    def close(self) -> None:
        self._drafter.close()

    def _travelled(self) -> ExpertStats:
        """Since the step before."""
        if self._experts is None:
            return self._seen
        seen, self._seen = self._seen, self._experts()
        return self._seen.since(seen)

    def _note(self, spans: Sequence[SpanPlan]) -> None:
        """Brings what is known of each sequence up to date. All that run are in every step: others have ended."""
        gone = self._known.keys() - {span.request_id for span in spans}
        for request_id in gone:
            self._forget(request_id)
        for span in spans:
            if span.past == 0:
                self._forget(span.request_id)
            known = self._known.setdefault(span.request_id, [])
            assert len(known) >= span.past, f"{span.request_id}: {len(known)} tokens known of {span.past}"
            known[span.past :] = span.token_ids

    def _forget(self, request_id: str) -> None:
        if self._known.pop(request_id, None) is not None:
            self._drafter.forget(request_id)
