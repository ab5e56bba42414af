import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smoe.core.errors import ConfigError
from smoe.workload.arrivals import ArrivalProcess
from smoe.workload.plan import Plan, fitted, made_up, timed, traced
from smoe.workload.prompts import PromptCutter
from smoe.workload.request_file import open_requests
from smoe.workload.request_trace import Arrival

LENGTHS = st.integers(1, 200_000)


@given(st.lists(st.tuples(LENGTHS, LENGTHS), min_size=1, max_size=30), st.integers(2, 5000))
@settings(max_examples=100, deadline=None)
def test_fitted_lengths_stay_in_the_context_and_in_proportion(lengths: list[tuple[int, int]], context: int) -> None:
    arrivals = tuple(Arrival(at_s=0, prompt_tokens=i, output_tokens=o) for i, o in lengths)
    plan = fitted(Plan(arrivals=arrivals), context)
    for before, after in zip(arrivals, plan.arrivals, strict=True):
        assert after.prompt_tokens + after.output_tokens <= context
        assert after.prompt_tokens == max(1, int(before.prompt_tokens * plan.scale))
        assert after.output_tokens == max(1, int(before.output_tokens * plan.scale))
    if max(i + o for i, o in lengths) <= context:
        assert plan.arrivals == arrivals


def test_made_up_lengths_lie_around_the_middle() -> None:
    plan = made_up(500, input_len=100, output_len=20, spread=0.5, seed=4)
    prompts = [a.prompt_tokens for a in plan.arrivals]
    answers = [a.output_tokens for a in plan.arrivals]
    assert (min(prompts), max(prompts), min(answers), max(answers)) == (50, 150, 10, 30)
    assert plan == made_up(500, input_len=100, output_len=20, spread=0.5, seed=4)
    assert plan != made_up(500, input_len=100, output_len=20, spread=0.5, seed=5)
    assert {a.prompt_tokens for a in made_up(9, input_len=7, output_len=2).arrivals} == {7}


def test_a_trace_at_another_rate_keeps_its_lengths_and_blocks() -> None:
    plan = fitted(traced(open_requests("mooncake-conversation"), 200), 1024)
    twice = timed(plan, ArrivalProcess.parse("trace"), 2.0, seed=0)
    assert twice.rate == pytest.approx(2.0)
    assert [a.blocks for a in twice.arrivals] == [a.blocks for a in plan.arrivals]
    even = timed(plan, ArrivalProcess.parse("constant"), 4.0, seed=0)
    assert [a.at_s for a in even.arrivals[:3]] == pytest.approx([0, 0.25, 0.5])


def test_equal_blocks_are_equal_tokens_at_the_same_place() -> None:
    plan = fitted(traced(open_requests("mooncake-conversation"), 100), 1024)
    prompts = list(PromptCutter(range(1_000_000), seed=1).cut(plan))
    shared = 0
    for i, (a, one) in enumerate(zip(plan.arrivals, prompts, strict=True)):
        assert len(one) == a.prompt_tokens
        for b, other in zip(plan.arrivals[:i], prompts[:i], strict=True):
            same = next((n for n, (x, y) in enumerate(zip(a.blocks, b.blocks, strict=False)) if x != y), None)
            same = min(len(a.blocks), len(b.blocks)) if same is None else same
            width = int(same * plan.block_tokens)
            if 0 < same < min(len(a.blocks), len(b.blocks)):
                assert one[:width] == other[:width]
                if min(len(one), len(other)) > width:
                    assert one[: width + 1] != other[: width + 1]
                shared += width > 0
    assert shared > 100


def test_prompts_differ_by_request_and_seed_and_begin_the_text_again() -> None:
    plan = made_up(20, input_len=30, output_len=1)
    prompts = list(PromptCutter(range(1000), seed=1).cut(plan))
    assert len(set(prompts)) == 20
    assert prompts == list(PromptCutter(range(1000), seed=1).cut(plan))
    assert prompts != list(PromptCutter(range(1000), seed=2).cut(plan))
    [tiled] = PromptCutter([5, 6, 7], seed=0).cut(made_up(1, input_len=8, output_len=1))
    assert len(tiled) == 8
    assert tiled[:3] == tiled[3:6]
    assert set(tiled) == {5, 6, 7}


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match="num_requests: 0"):
        made_up(0, input_len=1, output_len=1)
    with pytest.raises(ConfigError, match="len_spread: 1"):
        made_up(1, input_len=1, output_len=1, spread=1.0)
    with pytest.raises(ConfigError, match=r"num_requests: 4000 .*3000 rows of azure-conv"):
        traced(open_requests("azure-conv"), 4000)
    with pytest.raises(ConfigError, match="max_model_len: 1"):
        fitted(made_up(1, input_len=1, output_len=1), 1)
    with pytest.raises(ConfigError, match="prompts"):
        PromptCutter([], seed=0)
    with pytest.raises(ConfigError, match="arrival: 'trace'"):
        timed(made_up(3, input_len=1, output_len=1), ArrivalProcess.parse("trace"), 1.0, 0)
