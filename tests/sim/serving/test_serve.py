"""Serving in virtual time: small cases by hand, and what holds for any."""

import random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import smoe.engine.core
from smoe.core.errors import ConfigError
from smoe.core.step import StepPlan
from smoe.metrics.latency import tpot_s, ttft_s
from smoe.sched.scheduler import Scheduler
from smoe.sim.serving import serve as module
from smoe.sim.serving.cost import ByLoad
from smoe.sim.serving.load import StepLoad
from smoe.sim.serving.serve import Arrival, serve
from tests.sim.serving.loads import Linear, arrivals, scheduler, steps_of


def test_a_request_alone_takes_the_sum_of_its_steps() -> None:
    """100 tokens in chunks of 64 and 36, the second of which samples; then 3 decodes."""
    cost = ByLoad(Linear(step_s=1.0, prefill_s=0.01, decode_s=0.5))
    found = serve(arrivals((5.0, 100, 4)), scheduler(), cost)
    [record] = found.records
    first = 5 + (1 + 0.64) + (1 + 0.36)
    assert record.chunk_s == pytest.approx((first, first + 1.5, first + 3.0, first + 4.5))
    assert record.chunk_tokens == (1, 1, 1, 1)
    assert (record.prompt_tokens, record.output_tokens, record.failed) == (100, 4, False)
    assert ttft_s(record.times) == pytest.approx(3.0)
    assert tpot_s(record.times) == pytest.approx(1.5)
    assert (found.steps, found.ended_s) == (5, record.chunk_s[-1])
    assert found.busy_s == pytest.approx(found.ended_s - 5)


def test_two_at_once_share_steps_and_decodes_go_first() -> None:
    """A step has 64 tokens: one for the decoding request, 63 for the other's prompt of 64, then its last one."""
    cost = ByLoad(Linear(step_s=1.0, prefill_s=1.0))
    first, second = serve(arrivals((0.0, 10, 4), (0.5, 64, 2)), scheduler(), cost).records
    assert first.chunk_s == (11.0, 11 + 64.0, 75 + 1.0, 76 + 1.0)
    assert second.chunk_s == (76.0, 77.0), "the last token of a prompt alone is a row like those that decode"


def test_one_that_comes_when_a_step_ends_is_in_the_next() -> None:
    late, on_time = (
        steps_of(serve(arrivals((0.0, 1, 3), (at, 1, 1)), scheduler(), ByLoad(Linear())).records) for at in (1.001, 1.0)
    )
    assert on_time[1] == (2.0,)
    assert late[1] == (3.0,)


def test_those_that_do_not_fit_wait_in_their_order() -> None:
    """Room for two of 10 rows at a time."""
    found = serve(arrivals(*[(0.0, 5, 5)] * 4), scheduler(kv_rows=25), ByLoad(Linear()))
    assert [record.chunk_s[0] for record in found.records] == [1.0, 1.0, 6.0, 6.0]
    assert found.most_waiting == 2


def test_idle_time_is_skipped() -> None:
    found = serve(arrivals((0.0, 1, 1), (1000.0, 1, 1)), scheduler(), ByLoad(Linear()))
    assert (found.busy_s, found.ended_s, found.steps) == (2.0, 1001.0, 2)


def test_drafts_answer_several_tokens_a_step() -> None:
    """Up to 3 drafted and all kept: the first token comes with the prompt, then 4, then 3 that are left."""
    cost = ByLoad(Linear(step_s=1.0, decode_s=0.1), draft_step_s=0.25)
    [record] = serve(arrivals((0.0, 4, 8)), scheduler(drafts=3), cost).records
    assert record.chunk_tokens == (1, 4, 3)
    assert record.chunk_s == pytest.approx((1.0, 1 + 1 + 0.4 + 0.75, 3.15 + 1 + 0.3 + 0.5))
    [none] = serve(arrivals((0.0, 4, 8)), scheduler(drafts=3), cost, accept=0.0).records
    assert none.chunk_tokens == (1,) * 8


def test_what_is_drafted_is_kept_with_the_chance_that_was_said() -> None:
    each = arrivals(*[(0.0, 4, 200)] * 8)
    found = serve(each, scheduler(kv_rows=10_000, drafts=4), ByLoad(Linear()), accept=0.5, seed=3)
    chunks = [count for record in found.records for count in record.chunk_tokens[1:-2]]
    assert sum(chunks) / len(chunks) == pytest.approx(1 + 0.5 + 0.25 + 0.125 + 0.0625, rel=0.05)


def test_the_scheduler_is_the_engines_own() -> None:
    assert smoe.engine.core.Scheduler is Scheduler
    planned = []

    class Watched(Scheduler):
        def schedule(self) -> StepPlan | None:
            planned.append(super().schedule())
            return planned[-1]

    watched = Watched(kv_rows=100, max_num_seqs=2, max_num_batched_tokens=8)
    found = serve(arrivals((0.0, 3, 2), (0.0, 20, 1)), watched, ByLoad(Linear()))
    assert found.steps == len([plan for plan in planned if plan is not None])
    assert all(isinstance(plan, StepPlan) for plan in planned if plan is not None)


def test_the_same_seed_gives_the_same_times() -> None:
    each = some_arrivals(random.Random(1), 40)
    cost = ByLoad(Linear(step_s=0.1, prefill_s=0.001, decode_s=0.01))
    a, b, other = (serve(each, scheduler(drafts=2), cost, accept=0.6, seed=seed) for seed in (5, 5, 6))
    assert a == b
    assert steps_of(a.records) != steps_of(other.records)


def some_arrivals(draw: random.Random, count: int) -> list[Arrival]:
    at, made = 0.0, []
    for _ in range(count):
        at += draw.choice((0.0, 0.01, draw.expovariate(2.0)))
        made.append((at, draw.randint(1, 150), draw.randint(1, 30)))
    return arrivals(*made)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(200, 900), st.integers(1, 9), st.integers(1, 90), st.integers(0, 4))
def test_every_request_gets_its_tokens(seed: int, rows: int, seqs: int, tokens: int, drafts: int) -> None:
    draw = random.Random(seed)
    each = some_arrivals(draw, 25)
    cost = ByLoad(Linear(step_s=0.05, prefill_s=0.002, decode_s=0.01))
    found = serve(each, scheduler(rows, seqs, tokens, drafts), cost, accept=0.7, seed=seed)
    assert [record.request_id for record in found.records] == [str(number) for number in range(25)]
    for arrival, record in zip(each, found.records, strict=True):
        assert record.output_tokens == arrival.output_tokens
        assert record.prompt_tokens == arrival.prompt_tokens
        assert list(record.chunk_s) == sorted(set(record.chunk_s)), "one chunk a step"
        assert record.chunk_s[0] > record.sent_s == arrival.at_s
    assert found.ended_s == max(record.chunk_s[-1] for record in found.records)
    assert found.busy_s <= found.ended_s + 1e-9


def test_a_load_counts_a_plan() -> None:
    """Of one step: the rest of a prompt of 10, and a decode with 2 drafted tokens after 7 rows."""
    seen = []

    class Kept(Linear):
        def of(self, load: StepLoad) -> float:
            seen.append(load)
            return 1.0

    serve(arrivals((0.0, 7, 9), (0.5, 40, 1)), scheduler(tokens=20, drafts=4), ByLoad(Kept()))
    assert seen[0] == StepLoad(prefill_tokens=7, prefill_pairs=28, kv_rows=7, sequences=1, sampled=1)
    # Half of 19 tokens may be drafted while a prompt waits: 4. The prompt gets the other 15 of 40.
    assert seen[1] == StepLoad(
        prefill_tokens=15,
        prefill_pairs=15 * 16 // 2,
        decode_rows=5,
        decode_pairs=8 + 9 + 10 + 11 + 12,
        kv_rows=15 + 12,
        sequences=2,
        sampled=5,
        draft_steps=4,
    )


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"request 1: '900 \+ 101 tokens' \(at most the 1000 rows"):
        serve(arrivals((0.0, 1, 1), (0.0, 900, 101)), scheduler(), ByLoad(Linear()))
    with pytest.raises(ConfigError, match=r"request 0: '1 \+ 0 tokens' \(one of each at least"):
        serve(arrivals((0.0, 1, 0)), scheduler(), ByLoad(Linear()))
    with (
        patch.object(module, "_ONE", (*module._ONE, *module._ONE)),
        pytest.raises(AssertionError, match="tokens answered"),
    ):
        serve(arrivals((0.0, 1, 3)), scheduler(), ByLoad(Linear()))
