from collections.abc import Iterator
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smoe.core.sampling import SamplingParams
from smoe.core.step import SampledToken, StepPlan, StepResult
from smoe.sched.scheduler import Progress, Scheduler
from smoe.sched.sequence import Sequence


def make(
    kv_rows: int = 100, max_num_seqs: int = 4, budget: int = 16, eos: tuple[int, ...] = (), groups: int = 1
) -> Scheduler:
    return Scheduler(
        kv_rows=kv_rows,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        eos_token_ids=eos,
        num_groups=groups,
    )


def sequence(name: str, prompt: int, max_tokens: int = 4, **params: object) -> Sequence:
    return Sequence(
        request_id=name,
        token_ids=list(range(100, 100 + prompt)),
        num_prompt=prompt,
        max_tokens=max_tokens,
        params=SamplingParams(**params),  # type: ignore[arg-type]
    )


def answer(plan: StepPlan, token: int = 7) -> StepResult:
    return StepResult(tokens=tuple(() if span.sample is None else (SampledToken(token),) for span in plan.spans))


def step(scheduler: Scheduler, token: int = 7) -> tuple[StepPlan, list[Progress]]:
    plan = scheduler.schedule()
    assert plan is not None
    return plan, scheduler.update(plan, answer(plan, token))


def sizes(plan: StepPlan) -> dict[str, int]:
    return {span.request_id: len(span.token_ids) for span in plan.spans}


def test_a_long_prompt_runs_in_chunks_and_samples_only_at_its_end() -> None:
    scheduler = make(budget=16)
    scheduler.add(sequence("a", 40))
    chunks = [step(scheduler)[0].spans[0] for _ in range(4)]
    assert [(len(c.token_ids), c.past, c.sample is not None) for c in chunks] == [
        (16, 0, False),
        (16, 16, False),
        (8, 32, True),
        (1, 40, True),
    ]
    assert [c.token_ids[0] for c in chunks] == [100, 116, 132, 7]
    assert [c.sample_index for c in chunks] == [0, 0, 0, 1]
    assert [c.prompt_len for c in chunks] == [40] * 4


def test_decodes_go_on_beside_a_long_prompt() -> None:
    scheduler = make(budget=16)
    scheduler.add(sequence("a", 3, max_tokens=20))
    step(scheduler)
    scheduler.add(sequence("b", 60))
    for _ in range(4):
        plan, _ = step(scheduler)
        assert sizes(plan) == {"a": 1, "b": 15}
        assert plan.spans[0].request_id == "a"


def test_two_prompts_share_the_budget_first_come_first_served() -> None:
    scheduler = make(budget=16)
    for name in "ab":
        scheduler.add(sequence(name, 20))
    assert [sizes(step(scheduler)[0]) for _ in range(3)] == [{"a": 16}, {"a": 4, "b": 12}, {"a": 1, "b": 8}]


def test_every_running_sequence_advances_even_when_the_budget_is_smaller_than_max_num_seqs() -> None:
    scheduler = make(budget=3, max_num_seqs=8)
    for name in "abcde":
        scheduler.add(sequence(name, 2, max_tokens=3))
    seen: set[str] = set()
    while (plan := scheduler.schedule()) is not None:
        assert {s.request_id for s in scheduler.running} == set(sizes(plan))
        assert sum(sizes(plan).values()) <= 3
        seen |= {p.sequence.request_id for p in scheduler.update(plan, answer(plan)) if p.finish_reason}
    assert seen == set("abcde")


def test_the_head_of_the_queue_waits_for_rows_and_nobody_overtakes_it() -> None:
    scheduler = make(kv_rows=20)
    for name, prompt in (("a", 10), ("b", 12), ("c", 1)):
        scheduler.add(sequence(name, prompt, max_tokens=4))
    order = []
    while (plan := scheduler.schedule()) is not None:
        order += [s.request_id for s in plan.spans if s.past == 0]
        scheduler.update(plan, answer(plan))
    assert order == ["a", "b", "c"]


def test_end_of_sequence_stop_token_and_length() -> None:
    scheduler = make(eos=(9,))
    for name, params in (
        ("eos", {}),
        ("ignored", {"ignore_eos": True}),
        ("stop token", {"stop_token_ids": (9,), "ignore_eos": True}),
    ):
        scheduler.add(sequence(name, 2, max_tokens=2, **params))
    ends: dict[str, tuple[object, object]] = {}
    while scheduler.has_work:
        for progress in step(scheduler, token=9)[1]:
            if progress.finish_reason:
                ends[progress.sequence.request_id] = (progress.finish_reason, progress.stop_reason)
    assert ends == {"eos": ("stop", None), "stop token": ("stop", 9), "ignored": ("length", None)}


def test_an_error_ends_its_sequence_alone() -> None:
    scheduler = make()
    for name in "abc":
        scheduler.add(sequence(name, 2))
    plan = scheduler.schedule()
    assert plan is not None
    errors = (SampledToken(None, error="numeric: bad"), SampledToken(None, error="store: lost"), SampledToken(7))
    done = scheduler.update(plan, StepResult(tokens=tuple((error,) for error in errors)))
    assert [(p.sequence.request_id, p.finish_reason) for p in done] == [
        ("a", "numeric_error"),
        ("b", "error"),
        ("c", None),
    ]
    assert [s.request_id for s in scheduler.running] == ["c"]


def test_rows_of_a_sequence_that_ends_during_a_step_stay_reserved_until_the_step_is_over() -> None:
    scheduler = make(kv_rows=20)
    a = sequence("a", 10)
    scheduler.add(a)
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.finish(a)
    assert scheduler.arenas[0].kv.used_rows == 14
    assert scheduler.update(plan, answer(plan)) == []
    assert scheduler.arenas[0].kv.used_rows == 0
    assert not scheduler.has_work


def test_restart_keeps_order_and_tokens_and_prefills_from_the_start() -> None:
    scheduler = make(budget=16)
    for name in "ab":
        scheduler.add(sequence(name, 3, max_tokens=8))
    step(scheduler)
    step(scheduler)
    scheduler.add(sequence("c", 3))
    assert scheduler.schedule() is not None  # this step is lost
    scheduler.restart()
    scheduler.check_integrity()
    assert [s.request_id for s in scheduler.waiting] == ["a", "b", "c"]
    plan = scheduler.schedule()
    assert plan is not None
    assert [(s.request_id, s.past, s.token_ids, s.sample_index) for s in plan.spans] == [
        ("a", 0, (100, 101, 102, 7, 7), 2),
        ("b", 0, (100, 101, 102, 7, 7), 2),
        ("c", 0, (100, 101, 102), 0),
    ]


def test_check_integrity_finds_a_leaked_state_slot() -> None:
    scheduler = make()
    scheduler.add(sequence("a", 3))
    step(scheduler)
    scheduler.running[0].state_slot = 3
    with pytest.raises(
        RuntimeError, match=r"state slots: free and running together are \[0, 1, 2, 3, 3\]|\[1, 2, 3, 3\]"
    ):
        scheduler.check_integrity()


_REQUESTS = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 10), st.integers(0, 12), st.booleans()), min_size=1, max_size=12
)


@settings(deadline=None)
@given(_REQUESTS, st.integers(1, 5), st.integers(1, 24), st.integers(40, 90), st.integers(0, 99), st.integers(1, 3))
def test_conservation(
    requests: list[tuple[int, int, int, bool]],
    max_num_seqs: int,
    budget: int,
    kv_rows: int,
    restart_at: int,
    groups: int,
) -> None:
    """Every token of every sequence is computed once, in order, by one group, in rows that nobody else holds there."""
    scheduler = make(kv_rows, max_num_seqs, budget, groups=groups)
    group_of: dict[str, int] = {}
    arrivals = {str(n): request for n, request in enumerate(requests)}
    live: dict[str, Sequence] = {}
    filled: dict[str, int] = {}
    generated: dict[str, int] = {}
    finished: list[str] = []
    clock: Iterator[int] = count()
    while len(finished) < len(requests):
        now = next(clock)
        for name, (prompt, max_tokens, arrival, _) in arrivals.items():
            if arrival == now:
                live[name] = sequence(name, prompt, max_tokens)
                scheduler.add(live[name])
        plan = scheduler.schedule()
        scheduler.check_integrity()
        if plan is None:
            assert now <= 12
            continue
        if now == restart_at:
            scheduler.restart()
            filled.clear()
            continue
        assert sum(len(s.token_ids) for s in plan.spans) <= budget
        assert len(plan.spans) <= max_num_seqs
        for group in range(groups):
            own = [s for s in plan.spans if s.group == group]
            assert len({s.state_slot for s in own}) == len(own)
            ranges = sorted((s.kv_start, s.kv_start + live[s.request_id].num_rows) for s in own)
            assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
        for span in plan.spans:
            known = live[span.request_id].token_ids
            assert group_of.setdefault(span.request_id, span.group) == span.group < groups
            assert span.past == filled.get(span.request_id, 0)
            assert list(span.token_ids) == known[span.past : span.past + len(span.token_ids)]
            assert (span.sample is not None) == (span.past + len(span.token_ids) == len(known))
            filled[span.request_id] = span.past + len(span.token_ids)
            assert filled[span.request_id] <= live[span.request_id].num_rows
            if arrivals[span.request_id][3] and now % 5 == 4:
                scheduler.finish(live[span.request_id])  # aborted while the step runs
        for progress in scheduler.update(plan, answer(plan)):
            name = progress.sequence.request_id
            generated[name] = generated.get(name, 0) + 1
            if progress.finish_reason is not None:
                assert generated[name] == arrivals[name][1]
        finished = [name for name, s in live.items() if s.finished]
        scheduler.check_integrity()
    assert not scheduler.has_work
    assert [arena.kv.used_rows for arena in scheduler.arenas] == [0] * groups
