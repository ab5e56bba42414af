"""Figures of the speculation benchmark from runs and readings made by hand."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from smoe.bench.speculation.chance import chance_of_keeping
from smoe.bench.speculation.measure import Run
from smoe.bench.speculation.prompts import GSM8K, prompt_sets
from smoe.bench.speculation.report import draft_figures, ratio_figure, same_answers
from smoe.bench.speculation.routes import Reading, agreement, recall, union_size
from smoe.core.stats import DraftStats, ExpertStats

MODEL = Reading(np.array([1, 2, 3, 4]), np.array([[[0, 1], [1, 2], [5, 6], [5, 6]]]))
DRAFT = Reading(np.array([1, 2, 3, 9]), np.array([[[0, 1], [1, 3], [5, 6], [5, 7]]]))


def run_of(decode_s: float, answer: int = 1, sequences: int = 1, **experts: float) -> Run:
    return Run(
        sequences=sequences,
        tokens=10 * sequences,
        decode_s=decode_s,
        experts=ExpertStats(**experts),  # type: ignore[arg-type]
        draft=DraftStats(windows=4, drafted=16, accepted=12, draft_s=0.2, verify_s=0.6),
        answers=((answer,),) * sequences,
    )


def test_recall_counts_distinct_experts_of_a_window() -> None:
    assert agreement([MODEL], [DRAFT]) == 0.75
    assert recall([MODEL], [DRAFT], 1) == 6 / 8
    assert recall([MODEL], [DRAFT], 2) == 4 / 5  # {0,1,2} of which 0 and 1; {5,6} of which both
    assert union_size([MODEL], 1) == 2
    assert union_size([MODEL], 2) == 2.5
    assert union_size([MODEL], 3) == 5  # a rest of one token is no window of three


def test_time_a_token_is_that_of_each_sequence() -> None:
    assert run_of(1.0).tpot_s == pytest.approx(0.1)
    assert run_of(1.0, sequences=4).tpot_s == pytest.approx(0.1)


def test_ratio_is_the_mean_over_sets_of_paired_times() -> None:
    base = {"a": [run_of(2.0), run_of(4.0)], "b": [run_of(1.0)]}
    fast = {"a": [run_of(1.0), run_of(2.0)], "b": [run_of(1.0)]}
    figure = ratio_figure("60 %", fast, base, "draft", "demand", goal=True)
    assert figure.value == pytest.approx((2.0 + 1.0) / 2)
    assert figure.met is True
    assert "best a" in (figure.bound or "")
    assert ratio_figure("60 %", base, fast, "demand", "draft", goal=True).met is False
    assert same_answers(fast, base)
    assert not same_answers({"b": [run_of(1.0, answer=2)]}, base)


def test_hits_and_hidden_time_are_of_all_uses_and_transfers() -> None:
    run = run_of(1.0, hits=90, late=5, cold_misses=4, collision_misses=1, wait_s=0.25, transfer_s=1.0)
    p = chance_of_keeping(drafted=16, kept=12, windows=4)
    kept, length, hits, hidden = draft_figures("60 %", {"a": [run]}, 4)
    assert (kept.value, hits.value, hidden.value) == pytest.approx((75.0, 90.0, 75.0))
    assert (hits.met, hidden.met) == (False, True)
    assert length.value == pytest.approx(p / (1 - p)), "windows of four keep three on average"


@pytest.mark.parametrize(("chance", "length"), [(0.97, 32), (0.6, 8), (0.995, 64)])
def test_the_chance_is_found_again_from_what_windows_kept(chance: float, length: int) -> None:
    random, windows = Random(0), 4000
    kept = sum(next((i for i in range(length) if random.random() > chance), length) for _ in range(windows))
    found = chance_of_keeping(drafted=windows * length, kept=kept, windows=windows)
    assert found == pytest.approx(chance, abs=0.01)
    assert 1 / (1 - found) == pytest.approx(1 / (1 - chance), rel=0.1)


def test_all_kept_and_none_kept() -> None:
    assert chance_of_keeping(drafted=8, kept=8, windows=2) == 1.0
    assert chance_of_keeping(drafted=8, kept=0, windows=2) == 0.0


def test_no_run_is_expected_of_a_draft_that_is_never_refused() -> None:
    run = replace(run_of(1.0, transfer_s=1.0), draft=DraftStats(windows=4, drafted=16, accepted=16))
    _, length, *_ = draft_figures("60 %", {"a": [run]}, 4)
    assert length.value is None


def test_five_sets_of_prompts() -> None:
    sets = prompt_sets(lambda text: [ord(c) for c in text], 3, 20)
    assert list(sets) == ["prose", "dialogue", "code", "maths", GSM8K]
    assert all(len(prompts) == 3 and all(0 < len(p) <= 20 for p in prompts) for prompts in sets.values())
