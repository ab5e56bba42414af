"""Which tokens of which sequences run in the next step: continuous batching with chunked prefill."""

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from smoe.core.request import FinishReason
from smoe.core.step import SampledToken, SpanPlan, StepPlan, StepResult
from smoe.sched.arena import Arena
from smoe.sched.routing import Affinity, Rotation
from smoe.sched.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Progress:
    """What one step did to one sequence: one token or more, an error last. With `finish_reason`, which is that of the
    last of them, it has already left the scheduler."""

    sequence: Sequence
    tokens: tuple[SampledToken, ...]
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None


class Scheduler:
    """First come, first served in each group. A sequence reserves all rows it can ever need in the memory of its group,
    so nothing is preempted or copied; its group is chosen when it is added and stays, also through `restart`.

    Decodes go first, so a long prompt never delays them; prompts share what is left of `max_num_batched_tokens`, those
    of each group an even part of it and then what the others leave.
    Only what the budget has a token for is admitted, so every running sequence advances in every step. Drafted tokens
    are of the budget too: all that decodes leave, but half of it while prompts want some.

    Not thread-safe; `schedule` and `update` alternate.
    """

    def __init__(
        self,
        *,
        kv_rows: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        eos_token_ids: Iterable[int] = (),
        num_groups: int = 1,
        affinity: Affinity | None = None,
        draft_tokens: int = 0,
    ) -> None:
        """`kv_rows` are those of each group; the other limits hold for all groups together. Of a sequence that decodes,
        up to `draft_tokens` more may be drafted and answered in a step.

        Requests are dealt to groups by `affinity`, or to the group with the least to do.
        """
        self.arenas = [Arena(kv_rows, max_num_seqs) for _ in range(num_groups)]
        self.running: list[Sequence] = []
        self._draft_tokens = draft_tokens
        self._token_budget, self._max_num_seqs = max_num_batched_tokens, max_num_seqs
        self._eos = frozenset(eos_token_ids)
        self._planned: list[Sequence] = []
        self._affinity, self._rotation = affinity, Rotation(num_groups)
        self._num_added = 0

    @property
    def has_work(self) -> bool:
        return bool(self.running) or any(arena.waiting for arena in self.arenas)

    @property
    def waiting(self) -> list[Sequence]:
        """In the order in which they came."""
        return sorted((s for arena in self.arenas for s in arena.waiting), key=lambda s: s.arrival)

    def add(self, sequence: Sequence) -> None:
        """Queues it last. It must fit an arena: one that cannot would block all behind it."""
        rows = self.arenas[0].kv.num_rows
        assert sequence.num_rows <= rows, f"{sequence.request_id}: {sequence.num_rows} rows never fit"
        sequence.group = 0 if len(self.arenas) == 1 else self._rotation.choose(self._scores(sequence))
        sequence.arrival = self._num_added
        self._num_added += 1
        self.arenas[sequence.group].add(sequence)

    def use_affinity(self, affinity: Affinity) -> None:
        """For requests that are added from now on; the others keep their group."""
        self._affinity = affinity

    def schedule(self) -> StepPlan | None:
        """The next step, or None when nothing is in flight."""
        assert not self._planned, "schedule() before update() of the step before"
        decodes: list[Sequence] = []
        prefills: list[Sequence] = []
        for sequence in self.running:
            (decodes if sequence.num_pending == 1 else prefills).append(sequence)
        counts = dict.fromkeys(decodes + prefills, 1)
        budget = self._token_budget - len(counts)
        drafts = self._draft_limits(decodes, budget, alone=not prefills and not any(a.waiting for a in self.arenas))
        budget -= sum(drafts.values())
        # Groups compute side by side: each gets an even share before any gets what the others leave.
        groups = len(self.arenas)
        budget = self._deal(counts, budget, [-(-budget // groups)] * groups)
        if groups > 1:
            self._deal(counts, budget, [budget] * groups)
        if not counts:
            return None
        self._planned = list(counts)
        return StepPlan(spans=tuple([_span(each, count, drafts.get(each, 0)) for each, count in counts.items()]))

    def update(self, plan: StepPlan, result: StepResult) -> list[Progress]:
        """Takes in the answer to the last plan; sequences that sampled a token or failed, in plan order."""
        planned, self._planned = self._planned, []
        done: list[Progress] = []
        for sequence, span, tokens in zip(planned, plan.spans, result.tokens, strict=True):
            assert len(tokens) <= 1 + span.draft_limit, f"{span.request_id}: {len(tokens)} tokens answered"
            sequence.in_flight = False
            if sequence.finished:
                self._release(sequence)
                continue
            # Of a drafted run the last token is new; those before it were computed in this step, as the span was.
            sequence.past += len(span.token_ids) + max(0, len(tokens) - 1)
            if not tokens:
                continue
            progress = self._take(sequence, tokens)
            if progress.finish_reason is not None:
                self.finish(sequence)
            done.append(progress)
        return done

    def finish(self, sequence: Sequence) -> None:
        """Takes it out, whether it waits or runs; its rows stay reserved until a step in flight has ended."""
        if sequence.finished:
            return
        sequence.finished = True
        if sequence.kv_start < 0:
            self.arenas[sequence.group].drop(sequence)
        elif not sequence.in_flight:
            self._release(sequence)

    def restart(self) -> None:
        """The devices are lost and new ones are empty: every running sequence prefills its tokens again."""
        self._planned = []
        for sequence in reversed(self.running.copy()):
            sequence.in_flight = False
            self._release(sequence)
            if not sequence.finished:
                self.arenas[sequence.group].add(sequence, first=True)

    def check_integrity(self) -> None:
        """Raises RuntimeError unless rows and state slots are each owned once and by running sequences only."""
        for group, arena in enumerate(self.arenas):
            arena.check_integrity([sequence for sequence in self.running if sequence.group == group])
        for sequence in self.running:
            if not 0 <= sequence.past <= sequence.num_rows:
                raise RuntimeError(f"{sequence.request_id}: {sequence.past} rows filled of {sequence.num_rows}")

    def _scores(self, sequence: Sequence) -> SequenceOf[float]:
        if self._affinity is None:
            return [-arena.load_rows for arena in self.arenas]
        return self._affinity(sequence.token_ids)

    def _deal(self, counts: dict[Sequence, int], budget: int, shares: list[int]) -> int:
        """Gives pending tokens to what runs and then to what waits, within the budget and each group's share.

        Returns what is left of the budget.
        """
        for sequence, count in counts.items():
            extra = min(sequence.num_pending - count, budget, shares[sequence.group])
            counts[sequence] += extra
            shares[sequence.group] -= extra
            budget -= extra
        while budget > 0 and (admitted := self._try_admit(shares)) is not None:
            count = min(admitted.num_pending, budget, shares[admitted.group])
            counts[admitted] = count
            shares[admitted.group] -= count
            budget -= count
        return budget

    def _try_admit(self, shares: SequenceOf[int]) -> Sequence | None:
        """The first to come of those that are next in a group with a share left and room. It runs from now on."""
        if len(self.running) >= self._max_num_seqs:
            return None
        heads = [arena.waiting[0] for arena, share in zip(self.arenas, shares, strict=True) if arena.waiting and share]
        for sequence in sorted(heads, key=lambda head: head.arrival):
            if self.arenas[sequence.group].try_admit(sequence):
                self.running.append(sequence)
                return sequence
        return None

    def _release(self, sequence: Sequence) -> None:
        self.arenas[sequence.group].release(sequence)
        self.running.remove(sequence)

    def _draft_limits(self, decodes: SequenceOf[Sequence], budget: int, *, alone: bool) -> dict[Sequence, int]:
        """Tokens that each may draft: as many as it has left to generate beyond one, within even shares."""
        if not self._draft_tokens or not decodes:
            return {}
        budget = budget if alone else budget // 2
        limits: dict[Sequence, int] = {}
        for place, sequence in enumerate(decodes):
            share = -(-budget // (len(decodes) - place))
            left = sequence.max_tokens - sequence.num_generated - 1
            limits[sequence] = min(self._draft_tokens, left, share)
            budget -= limits[sequence]
        return limits

    def _take(self, sequence: Sequence, tokens: SequenceOf[SampledToken]) -> Progress:
        """Appends them up to the one that ends the sequence, if there is one; those after it are not of the answer."""
        for count, token in enumerate(tokens, 1):
            reason, stop_reason = self._take_one(sequence, token)
            if reason is not None:
                return Progress(sequence, tuple(tokens[:count]), reason, stop_reason)
        return Progress(sequence, tuple(tokens))

    def _take_one(self, sequence: Sequence, token: SampledToken) -> tuple[FinishReason | None, int | None]:
        if token.token_id is None:
            return ("numeric_error" if (token.error or "").startswith("numeric") else "error"), None
        sequence.token_ids.append(token.token_id)
        if token.token_id in self._eos and not sequence.params.ignore_eos:
            return "stop", None
        if token.token_id in sequence.params.stop_token_ids:
            return "stop", token.token_id
        return ("length" if sequence.num_generated >= sequence.max_tokens else None), None


def _span(sequence: Sequence, count: int, draft_limit: int) -> SpanPlan:
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
        group=sequence.group,
        draft_limit=draft_limit,
    )
