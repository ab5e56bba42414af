"""What HTTP adds, by closed loops whose times are made up."""

from collections.abc import Sequence
from typing import cast

import pytest

from smoe.bench.slo import front_profile
from smoe.bench.slo.client import Load, Order, Target
from smoe.bench.slo.front_profile import Loops, measure_front
from smoe.core.client import EngineClient
from smoe.core.errors import StartupError
from smoe.metrics.serving import RequestRecord
from smoe.sim.serving.front import ClosedLoop, Pair

TARGET = Target(base_url="http://127.0.0.1:1", model="made-up")
CLIENT = cast(EngineClient, object())
TEXT = list(range(1000))


def load(orders: Sequence[Order], token_s: float, error: str | None = None) -> Load:
    """Each token of each request `token_s` after the one before it, all of them together."""
    records = [
        RequestRecord(
            request_id=order.request_id,
            scheduled_s=0.0,
            sent_s=0.0,
            prompt_tokens=order.prompt_tokens,
            output_tokens=order.max_tokens,
            chunk_s=tuple((number + 1) * token_s for number in range(order.max_tokens)),
            chunk_tokens=(1,) * order.max_tokens,
            error=error,
        )
        for order in orders
    ]
    return Load(records=tuple(records), begun_s=0.0, ended_s=token_s * sum(order.max_tokens for order in orders))


class MadeUp:
    """Both ways: what was run in which order, and how long tokens take by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: str | None = None) -> None:
        self.ran: list[tuple[str, int, int, int]] = []
        self.error = error
        monkeypatch.setattr(front_profile, "closed_loop", self.over)
        monkeypatch.setattr(front_profile, "engine_load", self.straight)

    async def over(self, target: Target, orders: Sequence[Order], streams: int) -> Load:
        assert target is TARGET
        return self.run("over", orders, streams)

    def straight(self, client: EngineClient, orders: Sequence[Order], streams: int) -> Load:
        assert client is CLIENT
        return self.run("straight", orders, streams)

    def run(self, way: str, orders: Sequence[Order], streams: int) -> Load:
        self.ran.append((way, streams, len(orders), orders[0].max_tokens))
        return load(orders, 0.5 * streams + (0.25 if way == "over" else 0.0), self.error)


def test_the_same_loops_both_ways_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = MadeUp(monkeypatch)
    found = measure_front(TARGET, CLIENT, TEXT, Loops(streams=(1, 4), tokens=6, requests=3, prompt=5, repeats=2))
    warm_up, long, short = (4, 8, 2), [(1, 1, 6), (4, 4, 6)], [(1, 3, 1), (4, 8, 1)]
    assert made_up.ran == [("over", *warm_up), ("straight", *warm_up)] + [
        (way, *each)
        for ways in (("over", "straight"), ("straight", "over"))
        for pair in zip(long, short, strict=True)
        for each in pair
        for way in ways
    ]
    one, four = (
        ClosedLoop(streams=streams, token_s=times, request_s=times)
        for streams, times in ((1, Pair(over=0.75, straight=0.5)), (4, Pair(over=2.25, straight=2.0)))
    )
    assert found == (one, four) * 2


def test_a_request_without_an_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    MadeUp(monkeypatch, error="HTTP 500")
    with pytest.raises(StartupError, match="front: 8 of 8 requests failed: HTTP 500"):
        measure_front(TARGET, CLIENT, TEXT, Loops(streams=(1, 4)))
