"""Several tokens of a sequence answered in one step."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smoe.core.step import SampledToken, StepPlan, StepResult
from smoe.sched.scheduler import Scheduler
from tests.sched.test_scheduler import sequence, step

NUMERIC = SampledToken(None, error="numeric: bad")


def make(budget: int = 64, draft_tokens: int = 4, eos: tuple[int, ...] = (), kv_rows: int = 100) -> Scheduler:
    return Scheduler(
        kv_rows=kv_rows,
        max_num_seqs=4,
        max_num_batched_tokens=budget,
        eos_token_ids=eos,
        draft_tokens=draft_tokens,
    )


def limits(plan: StepPlan) -> dict[str, int]:
    return {span.request_id: span.draft_limit for span in plan.spans}


def answer(plan: StepPlan, *runs: tuple[int, ...]) -> StepResult:
    return StepResult(tokens=tuple(tuple(map(SampledToken, run)) for run in runs))


def test_a_run_of_tokens_advances_the_rows_by_all_but_its_last() -> None:
    scheduler = make()
    a = sequence("a", 3, max_tokens=20)
    scheduler.add(a)
    step(scheduler)
    plan = scheduler.schedule()
    assert plan is not None
    (span,) = plan.spans
    assert (span.past, span.token_ids, span.draft_limit) == (3, (7,), 4)
    (progress,) = scheduler.update(plan, answer(plan, (11, 12, 13)))
    assert [token.token_id for token in progress.tokens] == [11, 12, 13]
    assert (a.token_ids[3:], a.past) == ([7, 11, 12, 13], 6)
    plan = scheduler.schedule()
    assert plan is not None
    assert (plan.spans[0].past, plan.spans[0].token_ids, plan.spans[0].sample_index) == (6, (13,), 4)


def test_no_more_is_drafted_than_is_left_to_generate_and_prompts_draft_nothing() -> None:
    scheduler = make()
    scheduler.add(sequence("a", 3, max_tokens=4))
    seen = []
    while (plan := scheduler.schedule()) is not None:
        seen.append(limits(plan)["a"])
        scheduler.update(plan, answer(plan, (7,)))
    assert seen == [0, 2, 1, 0]


def test_drafted_tokens_are_of_the_budget_and_leave_half_of_it_to_prompts() -> None:
    scheduler = make(budget=12, draft_tokens=8)
    for name in "ab":
        scheduler.add(sequence(name, 2, max_tokens=20))
    step(scheduler)
    plan, _ = step(scheduler)
    assert limits(plan) == {"a": 5, "b": 5}
    scheduler.add(sequence("c", 30, max_tokens=1))
    plan, _ = step(scheduler)
    assert limits(plan) == {"a": 3, "b": 2, "c": 0}
    assert [len(span.token_ids) for span in plan.spans] == [1, 1, 5]


@pytest.mark.parametrize(
    ("run", "kept", "reason", "stop_reason"),
    [
        ((5, 9, 6), (5, 9), "stop", None),
        ((5, 8, 9), (5, 8), "stop", 8),
        ((5, 6, 5, 6), (5, 6, 5, 6), "length", None),
        ((5, 6, 5, 9), (5, 6, 5, 9), "stop", None),
        ((5, None), (5, None), "numeric_error", None),
        ((9, None), (9,), "stop", None),
    ],
    ids=["eos", "stop token", "length", "eos as the last of the length", "error", "eos before an error"],
)
def test_what_comes_after_the_end_is_not_of_the_answer(
    run: tuple[int | None, ...], kept: tuple[int | None, ...], reason: str, stop_reason: int | None
) -> None:
    scheduler = make(eos=(9,), draft_tokens=6)
    a = sequence("a", 3, max_tokens=5, stop_token_ids=(8,))
    scheduler.add(a)
    step(scheduler)
    plan = scheduler.schedule()
    assert plan is not None
    tokens = tuple(NUMERIC if token is None else SampledToken(token) for token in run)
    (progress,) = scheduler.update(plan, StepResult(tokens=(tokens,)))
    assert [token.token_id for token in progress.tokens] == list(kept)
    assert (progress.finish_reason, progress.stop_reason) == (reason, stop_reason)
    assert a.token_ids[4:] == [token for token in kept if token is not None]
    assert not scheduler.has_work
    scheduler.check_integrity()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=8),
    st.integers(1, 24),
    st.integers(1, 8),
    st.integers(0, 12),
    st.integers(0, 999),
)
def test_every_token_is_computed_once_whatever_runs_are_kept(
    requests: list[tuple[int, int]], budget: int, draft_tokens: int, restart_at: int, seed: int
) -> None:
    scheduler = make(budget, draft_tokens)
    chance = random.Random(seed)
    live = {str(n): sequence(str(n), prompt, max_tokens) for n, (prompt, max_tokens) in enumerate(requests)}
    for each in live.values():
        scheduler.add(each)
    rows: dict[str, list[int]] = {name: [] for name in live}
    steps = 0
    while (plan := scheduler.schedule()) is not None:
        steps += 1
        if steps == restart_at:
            scheduler.restart()
            rows = {name: [] for name in live}
            continue
        assert sum(len(s.token_ids) + s.draft_limit for s in plan.spans) <= budget
        runs = []
        for span in plan.spans:
            own = live[span.request_id]
            assert span.past == len(rows[span.request_id]) <= own.num_rows
            assert span.past + len(span.token_ids) + span.draft_limit <= own.num_rows
            assert span.draft_limit == 0 or (span.sample is not None and len(span.token_ids) == 1)
            count = 0 if span.sample is None else 1 + chance.randint(0, span.draft_limit)
            run = tuple(chance.randrange(100) for _ in range(count))
            rows[span.request_id] += [*span.token_ids, *run[:-1]]
            runs.append(run)
        scheduler.update(plan, answer(plan, *runs))
        scheduler.check_integrity()
        for name, filled in rows.items():
            assert live[name].token_ids[: len(filled)] == filled
    assert all(own.num_generated == own.max_tokens for own in live.values())
