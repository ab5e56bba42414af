"""Devices that hold in each row of their memory the token computed there, and refuse a step that would read others."""

import itertools
import random

from smoe.core.step import SampledToken, SpanPlan, StepPlan, StepResult

END = 1
"""The token that ends an answer."""


class ToyDevices:
    """Tokens that they sample are all different, but for END. `said` is what each request has been answered."""

    def __init__(self, *, groups: int, kv_rows: int, chance: random.Random) -> None:
        self._rows: list[list[int | None]] = [[None] * kv_rows for _ in range(groups)]
        self._chance, self._tokens = chance, itertools.count(1000)
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.said: dict[str, list[int]] = {}
        self._filled: dict[str, int] = {}

    def lose(self) -> None:
        """New devices: their memory is empty."""
        self._rows = [[None] * len(rows) for rows in self._rows]
        self._filled.clear()

    def prompt(self, name: str, length: int) -> list[int]:
        self.prompts[name] = tuple(next(self._tokens) for _ in range(length))
        self.said[name] = []
        return list(self.prompts[name])

    def run(self, plan: StepPlan) -> StepResult:
        """All spans read before any is written, as kernels may."""
        for span in plan.spans:
            self._check(span)
        slots = [(span.group, span.state_slot) for span in plan.spans]
        assert len(set(slots)) == len(slots), "two spans share a state"
        return StepResult(tokens=tuple(self._answer(span) for span in plan.spans))

    def known(self, name: str) -> list[int]:
        return [*self.prompts[name], *self.said[name]]

    def _check(self, span: SpanPlan) -> None:
        known, end = self.known(span.request_id), span.past + len(span.token_ids)
        assert span.token_ids, f"{span.request_id}: an empty span"
        assert span.past == self._filled.get(span.request_id, 0), f"{span.request_id}: rows left out or computed twice"
        assert self._rows[span.group][span.kv_start : span.kv_start + span.past] == known[: span.past]
        assert list(span.token_ids) == known[span.past : end]
        assert (span.sample is not None) == (end == len(known))
        assert span.sample_index == len(self.said[span.request_id])
        assert not span.draft_limit or span.sample is not None

    def _answer(self, span: SpanPlan) -> tuple[SampledToken, ...]:
        self._write(span, span.past, span.token_ids)
        if span.sample is None:
            return ()
        count = 1 + self._chance.randint(0, span.draft_limit)
        tokens = [END if self._chance.random() < 0.05 else next(self._tokens) for _ in range(count)]
        self._write(span, span.past + len(span.token_ids), tuple(tokens[:-1]))
        answer = [SampledToken(token) for token in tokens]
        if self._chance.random() < 0.03:
            answer[-1] = SampledToken(None, error="numeric: not a number")
        return tuple(answer)

    def _write(self, span: SpanPlan, past: int, tokens: tuple[int, ...]) -> None:
        first = span.kv_start + past
        self._filled[span.request_id] = past + len(tokens)
        assert first + len(tokens) <= len(self._rows[span.group]), f"{span.request_id}: beyond the memory"
        self._rows[span.group][first : first + len(tokens)] = tokens
