"""Drafting stops when it does not pay and is tried again; how far pays best. Times are given, none is measured."""

import logging
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from smoe.engine.draft.depth import FixedDepth, OnlineDepth, Step
from smoe.engine.draft.pace import Pace


def steps(pace: Pace, count: int, seconds: Callable[[int], float], kept: Callable[[int], int], sequences: int = 1):
    """Depths asked for; a step of depth k takes seconds(k) and keeps kept(k) tokens a sequence."""
    depths = []
    for _ in range(count):
        depth = pace.depth(sequences)
        depths.append(depth)
        whole = seconds(depth)
        pace.note(
            Step(
                sequences=sequences,
                depth=depth,
                proposed=depth * sequences,
                kept=kept(depth) * sequences if depth else 0,
                draft_s=0.4 * whole if depth else 0.0,
                verify_s=0.6 * whole if depth else whole,
            )
        )
    return depths


def make(auto_off: bool = True) -> Pace:
    return Pace(lambda: FixedDepth(4), auto_off=auto_off)


def test_what_pays_goes_on_with_a_look_without_it_now_and_then() -> None:
    pace = make()
    depths = steps(pace, 400, lambda depth: 2.0 if depth else 1.0, lambda depth: 3)
    assert pace.pauses == 0
    assert 3 <= depths.count(0) <= 12


@pytest.mark.parametrize(("kept", "pauses"), [(0, True), (1, True), (2, False)])
def test_break_even(kept: int, pauses: bool) -> None:
    """A window costs 2.5 steps, so it pays from two kept tokens on."""
    pace = make()
    steps(pace, 60, lambda depth: 2.5 if depth else 1.0, lambda depth: kept)
    assert (pace.pauses > 0) == pauses


def test_it_is_tried_again_later_and_later_and_goes_on_once_it_pays(caplog: pytest.LogCaptureFixture) -> None:
    pace = make()
    with caplog.at_level(logging.INFO, "smoe.engine.draft.pace"):
        depths = steps(pace, 2000, lambda depth: 3.0 if depth else 1.0, lambda depth: 1)
    runs = [len(run) for run in "".join("x" if depth == 0 else " " for depth in depths).split()]
    long = [run for run in runs if run > 10]
    assert long[:3] == [256, 512, 1024]
    assert pace.pauses >= 3
    assert caplog.records[0].message == (
        "drafting does not pay with 1 sequence: 1500.00 ms a token, 1000.00 ms without (0.67x), "
        "25 % of drafted tokens kept; off for 256 tokens"
    )
    assert len(caplog.records) == pace.pauses
    depths = steps(pace, 6000, lambda depth: 1.0, lambda depth: 4)
    assert depths[-200:].count(0) < 10


def test_what_makes_tokens_twice_as_slow_is_noticed_sooner() -> None:
    def first_pause(slowdown: float) -> int:
        pace = make()
        return next(
            n for n in range(100) if steps(pace, 1, lambda k: slowdown if k else 1.0, lambda k: 0) and pace.pauses
        )

    assert first_pause(1.5) == 8 + 3 - 1
    assert first_pause(2.5) == 4 + 3 + 1 - 1


def test_the_verdict_says_what_travelled_in_vain(caplog: pytest.LogCaptureFixture) -> None:
    pace = make()
    step = Step(sequences=2, depth=4, proposed=8, kept=4, draft_s=3.0, verify_s=5.0)
    with caplog.at_level(logging.INFO, "smoe.engine.draft.pace"):
        for _ in range(30):
            if pace.depth(2) == 0:
                pace.note(replace(step, depth=0, proposed=0, kept=0, draft_s=0.0, verify_s=1.0, transfer_s=9.0))
            else:
                pace.note(replace(step, transfer_s=4.0, wait_s=3.0, prefetched=10, wasted=7))
    (record,) = caplog.records
    assert record.message == (
        "drafting does not pay with 2 sequences: 2666.67 ms a token, 1000.00 ms without (0.38x), "
        "50 % of drafted tokens kept, 25 % of transfer time hidden, 70 % of prefetches wasted; off for 256 tokens"
    )


def test_what_a_draft_saves_is_told_once_it_is_known_and_may_be_a_loss() -> None:
    pace = make()
    plain = Step(sequences=2, depth=0, proposed=0, kept=0, draft_s=0.0, verify_s=2.0)
    fast = Step(sequences=2, depth=4, proposed=8, kept=6, draft_s=1.0, verify_s=3.0)
    assert pace.note(fast) == 0.0
    assert pace.note(plain) == 0.0
    assert pace.note(fast) == pytest.approx(2.0 * 4 - 4.0)
    assert pace.note(replace(fast, kept=0)) == pytest.approx(2.0 - 4.0)


def test_numbers_of_sequences_are_judged_apart() -> None:
    pace = make()
    steps(pace, 60, lambda depth: 3.0 if depth else 1.0, lambda depth: 0, sequences=8)
    assert pace.depth(8) == 0
    assert pace.depth(1) == 4


def test_it_can_be_told_to_go_on() -> None:
    pace = make(auto_off=False)
    assert set(steps(pace, 100, lambda depth: 9.0 if depth else 1.0, lambda depth: 0)) == {4}
    assert pace.pauses == 0


@pytest.mark.parametrize(
    ("acceptance", "draft_s", "row_s", "low", "high"),
    [(0.97, 0.05, 0.01, 9, 16), (0.5, 0.3, 0.01, 1, 2), (0.9, 0.1, 0.3, 1, 4), (0.99, 0.0, 0.0, 16, 16)],
)
def test_online_depth_finds_what_is_fastest(
    acceptance: float, draft_s: float, row_s: float, low: int, high: int
) -> None:
    chance, depth = random.Random(1), OnlineDepth(16)
    chosen = []
    for _ in range(600):
        tokens = depth.choose()
        kept = next((i for i in range(tokens) if chance.random() >= acceptance), tokens)
        verify_s = 1.0 + row_s * tokens
        depth.note(
            Step(sequences=1, depth=tokens, proposed=tokens, kept=kept, draft_s=draft_s * tokens, verify_s=verify_s)
        )
        chosen.append(tokens)
    common = max(set(chosen[-100:]), key=chosen[-100:].count)
    assert low <= common <= high
    assert len(set(chosen)) > 1
