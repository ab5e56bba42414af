"""The scheduler under any order of arrivals, cancellations, steps and lost devices, over devices that check rows."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from smoe.core.sampling import SamplingParams
from smoe.core.step import StepPlan
from smoe.sched.scheduler import Progress, Scheduler
from smoe.sched.sequence import Sequence
from tests.sched.toy_devices import END, ToyDevices

KV_ROWS = 40
REQUEST = st.tuples(st.integers(1, 20), st.integers(1, 20), st.booleans())


class Traffic(RuleBasedStateMachine):
    """`plan` is the step under way, if there is one."""

    @initialize(
        seed=st.integers(0, 2**32),
        groups=st.integers(1, 3),
        seqs=st.integers(1, 6),
        budget=st.integers(1, 24),
        draft_tokens=st.sampled_from([0, 0, 1, 5]),
    )
    def begin(self, seed: int, groups: int, seqs: int, budget: int, draft_tokens: int) -> None:
        self.scheduler = Scheduler(
            kv_rows=KV_ROWS,
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            eos_token_ids=(END,),
            num_groups=groups,
            draft_tokens=draft_tokens,
        )
        self.devices = ToyDevices(groups=groups, kv_rows=KV_ROWS, chance=random.Random(seed))
        self.budget, self.seqs, self.groups = budget, seqs, groups
        self.live: dict[str, Sequence] = {}
        self.cancelled: set[str] = set()
        self.waits: dict[str, int] = {}
        self.admitted: list[int] = [-1] * groups
        self.plan: StepPlan | None = None
        self.number = 0

    @rule(requests=st.lists(REQUEST, min_size=1, max_size=6))
    def arrive(self, requests: list[tuple[int, int, bool]]) -> None:
        for prompt, answer, ignore_eos in requests:
            name, self.number = str(self.number), self.number + 1
            self.live[name] = Sequence(
                request_id=name,
                token_ids=self.devices.prompt(name, prompt),
                num_prompt=prompt,
                max_tokens=min(answer, KV_ROWS - prompt),
                params=SamplingParams(ignore_eos=ignore_eos),
            )
            self.scheduler.add(self.live[name])

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Whether it waits, runs, or is in the step under way."""
        name = data.draw(st.sampled_from(sorted(self.live)))
        self.scheduler.finish(self.live.pop(name))
        self.cancelled.add(name)

    @precondition(lambda self: self.plan is None and self.live)
    @rule()
    def schedule(self) -> None:
        left = self.budget - len(self.scheduler.running)
        prompts_want_some = any(sequence.num_pending > 1 for sequence in self.live.values())
        self.plan = self.scheduler.schedule()
        assert self.plan is not None, f"forgotten: {sorted(self.live)}"
        spans = {span.request_id: span for span in self.plan.spans}
        assert set(spans) == {sequence.request_id for sequence in self.scheduler.running}, "a running one stands still"
        assert len(spans) == len(self.plan.spans) <= self.seqs
        assert sum(len(span.token_ids) + span.draft_limit for span in self.plan.spans) <= self.budget
        drafted = sum(span.draft_limit for span in self.plan.spans)
        if drafted and prompts_want_some:
            assert drafted <= left / 2, "drafts keep prompts from their part"
        for span in self.plan.spans:
            if span.draft_limit and span.request_id in self.live:
                wanted = self.live[span.request_id].max_tokens - span.sample_index
                assert span.draft_limit < wanted, "drafted beyond the end"
        self._check_turns()

    @precondition(lambda self: self.plan is not None)
    @rule()
    def update(self) -> None:
        assert self.plan is not None
        plan, self.plan = self.plan, None
        result = self.devices.run(plan)
        progress = {each.sequence.request_id: each for each in self.scheduler.update(plan, result)}
        for span, tokens in zip(plan.spans, result.tokens, strict=True):
            name = span.request_id
            if name in self.cancelled:
                assert name not in progress, f"{name} was cancelled and is answered"
            else:
                assert (name in progress) == bool(tokens)
                if tokens:
                    self._take(progress[name], [token.token_id for token in tokens])

    @precondition(lambda self: self.plan is None and self.live)
    @rule(count=st.integers(2, 12))
    def several_steps(self, count: int) -> None:
        for _ in range(count):
            if self.live:
                self.schedule()
                self.update()
                self.whole()

    @precondition(lambda self: self.scheduler.running)
    @rule()
    def lose_devices(self) -> None:
        self.plan = None
        self.scheduler.restart()
        self.devices.lose()
        self.waits.clear()
        self.admitted = [-1] * self.groups

    @invariant()
    def whole(self) -> None:
        self.scheduler.check_integrity()

    def teardown(self) -> None:
        """Without more arrivals everything ends, each step by one row at least, and nothing is left behind."""
        if self.plan is not None:
            self.update()
        for _ in range(sum(sequence.num_rows for sequence in self.live.values())):
            if not self.live:
                break
            self.schedule()
            self.update()
            self.whole()
        assert not self.live
        assert not self.scheduler.has_work
        assert self.scheduler.schedule() is None
        assert [arena.kv.used_rows for arena in self.scheduler.arenas] == [0] * self.groups
        assert [arena.load_rows for arena in self.scheduler.arenas] == [0] * self.groups
        assert not self.scheduler.running

    def _check_turns(self) -> None:
        """First come, first served in a group, and the first of all waits no longer than others ahead of it take: those
        of its group to leave their rows, those of the others to leave the budget, one to leave its place."""
        for sequence in self.scheduler.running:
            if sequence.past == 0:
                assert sequence.arrival > self.admitted[sequence.group], f"{sequence.request_id} overtakes"
                self.admitted[sequence.group] = max(self.admitted[sequence.group], sequence.arrival)
        waiting = self.scheduler.waiting
        self.waits = {each.request_id: self.waits.get(each.request_id, 0) + 1 for each in waiting[:1]}
        assert all(steps <= (self.groups + 2) * KV_ROWS for steps in self.waits.values()), self.waits

    def _take(self, progress: Progress, tokens: list[int | None]) -> None:
        """What is kept of `tokens`: those up to the one that ends the answer."""
        sequence = progress.sequence
        name, said = sequence.request_id, self.devices.said[sequence.request_id]
        kept, end = [], None
        for token in tokens:
            if token is None:
                end = "numeric_error"
                break
            kept.append(token)
            if token == END and not sequence.params.ignore_eos:
                end = "stop"
                break
            if len(said) + len(kept) == sequence.max_tokens:
                end = "length"
                break
        said += kept
        assert [token.token_id for token in progress.tokens if token.token_id is not None] == kept
        assert progress.finish_reason == end
        assert sequence.token_ids == self.devices.known(name)
        assert sequence.finished == (end is not None)
        if end is not None:
            del self.live[name]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 4), st.integers(1, 12), st.sampled_from([0, 4]))
def test_nobody_starves_however_many_come(seed: int, groups: int, seqs: int, budget: int, draft_tokens: int) -> None:
    """Something waits at all times; each gets its turn within a bounded number of steps, in the order they came."""
    chance, rows = random.Random(seed), 12
    scheduler = Scheduler(
        kv_rows=rows,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        num_groups=groups,
        draft_tokens=draft_tokens,
    )
    devices = ToyDevices(groups=groups, kv_rows=rows, chance=chance)
    first_for: dict[str, int] = {}
    for number in range(250):
        while len(scheduler.waiting) < seqs + 6:
            name, prompt = f"{number}-{len(devices.prompts)}", chance.randint(1, rows - 1)
            tokens = devices.prompt(name, prompt)
            limit = chance.randint(1, rows - prompt)
            scheduler.add(Sequence(request_id=name, token_ids=tokens, num_prompt=prompt, max_tokens=limit))
        plan = scheduler.schedule()
        assert plan is not None
        first = scheduler.waiting[0].request_id
        first_for = {first: first_for.get(first, 0) + 1}
        assert first_for[first] <= (groups + 2) * rows
        for progress in scheduler.update(plan, devices.run(plan)):
            devices.said[progress.sequence.request_id] += [
                token.token_id for token in progress.tokens if token.token_id
            ]
        scheduler.check_integrity()


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(deadline=None, max_examples=60, stateful_step_count=60)
