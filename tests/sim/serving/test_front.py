"""What a front adds to steps, and that known parts of it are found in closed loops."""

import random
from dataclasses import asdict, replace

import pytest

from smoe.core.errors import ConfigError
from smoe.sim.serving.cost import ByLoad
from smoe.sim.serving.front import BehindFront, ClosedLoop, Front, Pair, fit_front
from smoe.sim.serving.serve import serve
from tests.sim.serving.loads import Linear, arrivals, scheduler

FRONT = Front(step_s=0.5, answer_s=0.25, request_s=4.0)


def test_a_step_pays_for_its_answers_and_for_requests_that_begin() -> None:
    """A prompt of 100 in chunks of 64 and 36, the second of which samples, then a decode; one joins the last step."""
    found = serve(arrivals((0.0, 100, 2), (6.5, 1, 1)), scheduler(), BehindFront(ByLoad(Linear()), FRONT))
    first, second = found.records
    begins, samples = 1 + 4.0, 1 + 0.5 + 0.25
    assert first.chunk_s[0] == begins + samples
    assert first.chunk_s[1] == second.chunk_s[0] == begins + samples + 1 + 0.5 + 2 * 0.25 + 4.0


def test_a_front_that_costs_nothing_changes_nothing() -> None:
    each = arrivals((0.0, 5, 3), (0.5, 70, 4), (9.0, 2, 2))
    alone, fronted = (
        serve(each, scheduler(), cost) for cost in (ByLoad(Linear()), BehindFront(ByLoad(Linear()), Front()))
    )
    assert alone == fronted


def loops(front: Front, noise: float = 0.0, repeats: int = 1) -> list[ClosedLoop]:
    """As if an engine's steps took 1 ms and 0.3 ms a stream, and some of them were held up."""
    draw = random.Random(0)

    def pair(straight: float, more: float) -> Pair:
        return Pair(over=straight + more + noise * draw.random() * (draw.random() < 0.3), straight=straight)

    return [
        ClosedLoop(
            streams=streams,
            token_s=pair(1e-3 + 0.3e-3 * streams, front.step_s + front.answer_s * streams),
            request_s=pair(8e-3, front.step_s / streams + front.answer_s + front.request_s),
        )
        for _ in range(repeats)
        for streams in (1, 2, 4, 8, 16, 32)
    ]


def test_known_parts_are_found() -> None:
    true = Front(step_s=3e-4, answer_s=5e-5, request_s=9e-4)
    for found in (fit_front(loops(true)), fit_front(loops(true, noise=0.1, repeats=9))):
        assert asdict(found) == pytest.approx(asdict(true), rel=1e-6)


def test_requests_count_as_those_that_come_alone() -> None:
    true = Front(step_s=3e-4, answer_s=5e-5, request_s=2e-3)
    together = [
        loop if loop.streams == 1 else replace(loop, request_s=Pair(over=8.5e-3, straight=8e-3)) for loop in loops(true)
    ]
    assert fit_front(together).request_s == pytest.approx(true.request_s)


def test_no_part_is_below_zero() -> None:
    found = fit_front(loops(Front(step_s=-1e-3, answer_s=2e-4, request_s=-1e-3)))
    assert found.step_s == found.request_s == 0
    assert found.answer_s > 0


def test_one_number_of_streams_is_too_few() -> None:
    with pytest.raises(ConfigError, match=r"front: 'closed loops of \[4\] streams' \(two"):
        fit_front([loop for loop in loops(FRONT, repeats=2) if loop.streams == 4])
