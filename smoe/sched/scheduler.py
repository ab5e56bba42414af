"""Which tokens of which sequences run in the next step: continuous batching with chunked prefill."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from smoe.core.request import FinishReason
from smoe.core.step import SampledToken, SpanPlan, StepPlan, StepResult
from smoe.sched.kv_ranges import KVRanges
from smoe.sched.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Progress:
    """What one step did to one sequence. With `finish_reason` it has already left the scheduler."""

    sequence: Sequence
    token: SampledToken
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None


class Scheduler:
    """First come, first served. A sequence reserves all rows it can ever need, so nothing is preempted or copied.

    Decodes go first, so a long prompt never delays them; prompts share what is left of `max_num_batched_tokens`.
    Only what the budget has a token for is admitted, so every running sequence advances in every step. Not
    thread-safe; `schedule` and `update` alternate.
    """

    def __init__(
        self, *, kv_rows: int, max_num_seqs: int, max_num_batched_tokens: int, eos_token_ids: Iterable[int] = ()
    ) -> None:
        self.kv = KVRanges(kv_rows)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._token_budget = max_num_batched_tokens
        self._num_states = max_num_seqs
        self._free_states = list(range(self._num_states - 1, -1, -1))
        self._eos = frozenset(eos_token_ids)
        self._planned: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queues it last. It must fit the arena: one that cannot would block all behind it."""
        assert sequence.num_rows <= self.kv.num_rows, f"{sequence.request_id}: {sequence.num_rows} rows never fit"
        self.waiting.append(sequence)

    def schedule(self) -> StepPlan | None:
        """The next step, or None when nothing is in flight."""
        assert not self._planned, "schedule() before update() of the step before"
        budget = self._token_budget - len(self.running)  # one token each is spoken for
        chunks: list[tuple[Sequence, int]] = []
        prefills: list[Sequence] = []
        for sequence in self.running:
            if len(sequence.token_ids) - sequence.past == 1:
                chunks.append((sequence, 1))
            else:
                prefills.append(sequence)
        for sequence in prefills:
            extra = min(sequence.num_pending - 1, budget)
            budget -= extra
            chunks.append((sequence, 1 + extra))
        while self.waiting and budget > 0 and self._try_admit(self.waiting[0]):
            sequence = self.waiting.popleft()
            count = min(sequence.num_pending, budget)
            budget -= count
            chunks.append((sequence, count))
        if not chunks:
            return None
        self._planned = [sequence for sequence, _ in chunks]
        return StepPlan(spans=tuple([_span(sequence, count) for sequence, count in chunks]))

    def update(self, plan: StepPlan, result: StepResult) -> list[Progress]:
        """Takes in the answer to the last plan; sequences that sampled a token or failed, in plan order."""
        planned, self._planned = self._planned, []
        done: list[Progress] = []
        for sequence, span, token in zip(planned, plan.spans, result.tokens, strict=True):
            sequence.in_flight = False
            if sequence.finished:
                self._release(sequence)
                continue
            sequence.past += len(span.token_ids)
            if token is None:
                continue
            reason, stop_reason = self._take(sequence, token)
            if reason is not None:
                self.finish(sequence)
            done.append(Progress(sequence, token, reason, stop_reason))
        return done

    def finish(self, sequence: Sequence) -> None:
        """Takes it out, whether it waits or runs; its rows stay reserved until a step in flight has ended."""
        if sequence.finished:
            return
        sequence.finished = True
        if sequence.kv_start < 0:
            self.waiting.remove(sequence)
        elif not sequence.in_flight:
            self._release(sequence)

    def restart(self) -> None:
        """The devices are lost and new ones are empty: every running sequence prefills its tokens again."""
        self._planned = []
        for sequence in reversed(self.running.copy()):
            sequence.in_flight = False
            self._release(sequence)
            if not sequence.finished:
                self.waiting.appendleft(sequence)

    def check_integrity(self) -> None:
        """Raises RuntimeError unless rows and state slots are each owned once and by running sequences only."""
        self.kv.check_integrity()
        rows = sum(sequence.num_rows for sequence in self.running)
        if rows != self.kv.used_rows:
            raise RuntimeError(f"KV rows: {self.kv.used_rows} reserved, running sequences own {rows}")
        states = sorted([*self._free_states, *(sequence.state_slot for sequence in self.running)])
        if states != list(range(self._num_states)):
            raise RuntimeError(f"state slots: free and running together are {states}, not 0..{self._num_states - 1}")
        for sequence in self.running:
            if not 0 <= sequence.past <= sequence.num_rows:
                raise RuntimeError(f"{sequence.request_id}: {sequence.past} rows filled of {sequence.num_rows}")

    def _try_admit(self, sequence: Sequence) -> bool:
        if not self._free_states:
            return False
        start = self.kv.try_reserve(sequence.request_id, sequence.num_rows)
        if start is None:
            return False
        sequence.kv_start, sequence.state_slot, sequence.past = start, self._free_states.pop(), 0
        self.running.append(sequence)
        return True

    def _release(self, sequence: Sequence) -> None:
        self.kv.free(sequence.request_id)
        self._free_states.append(sequence.state_slot)
        self.running.remove(sequence)
        sequence.kv_start = sequence.state_slot = -1

    def _take(self, sequence: Sequence, token: SampledToken) -> tuple[FinishReason | None, int | None]:
        if token.token_id is None:
            return ("numeric_error" if (token.error or "").startswith("numeric") else "error"), None
        sequence.token_ids.append(token.token_id)
        if token.token_id in self._eos and not sequence.params.ignore_eos:
            return "stop", None
        if token.token_id in sequence.params.stop_token_ids:
            return "stop", token.token_id
        return ("length" if sequence.num_generated >= sequence.max_tokens else None), None


def _span(sequence: Sequence, count: int) -> SpanPlan:
    sequence.in_flight = True
    past, known = sequence.past, sequence.token_ids
    return SpanPlan(
        request_id=sequence.request_id,
        state_slot=sequence.state_slot,
        kv_start=sequence.kv_start,
        past=past,
        token_ids=tuple(known[past : past + count]),
        sample=sequence.params if past + count == len(known) else None,
        sample_index=len(known) - sequence.num_prompt,
        seed=sequence.seed,
        prompt_len=sequence.num_prompt,
        record=sequence.record,
    )
