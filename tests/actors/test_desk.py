"""The desk of a served model, and what follows from its reports; no Ray."""

import asyncio
from typing import Any

import pytest

from smoe.actors.desk import LEASE_S, Desk, Report, Standing, all_closed, standing

RUNNING, LOADING, FAILED, CLOSED = (Report(phase) for phase in ("running", "loading", "failed", "closed"))


def test_a_report_wakes_whoever_waits_for_the_board() -> None:
    async def body() -> None:
        desk = Desk()
        waiting = asyncio.ensure_future(desk.board(0, 60.0))
        await asyncio.sleep(0)
        await desk.report("a", LOADING)
        board = await waiting
        assert (board.version, board.reports) == (1, {"a": LOADING})
        await desk.report("a", RUNNING)
        assert (await desk.board(1, 60.0)).reports == {"a": RUNNING}
        assert (await desk.board(2, 0.001)).version == 2, "nothing new: the same, after its timeout"

    asyncio.run(body())


def test_replicas_hear_that_they_shall_end_and_those_who_come_later_too() -> None:
    async def body() -> None:
        desk = Desk()
        assert not await desk.until_ending("a", lease_s=0.001)
        waiting = asyncio.ensure_future(desk.until_ending("a", lease_s=60.0))
        await asyncio.sleep(0)
        assert not waiting.done()
        await desk.end()
        assert await waiting
        assert await desk.until_ending("b", lease_s=60.0)

    asyncio.run(body())


def test_who_stays_is_not_told_of_the_end() -> None:
    async def body() -> None:
        desk = Desk()
        await desk.end()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(desk.stay(), 0.001)

    asyncio.run(body())


def test_a_replica_that_no_longer_asks_is_forgotten() -> None:
    now = [100.0]

    async def body() -> None:
        desk = Desk(lambda: now[0])
        await desk.report("dead", RUNNING)
        await desk.report("alive", CLOSED)
        now[0] += 2 * LEASE_S
        await desk.until_ending("alive", lease_s=0.001)
        assert set((await desk.board(-1, 1.0)).reports) == {"dead", "alive"}
        now[0] += 2 * LEASE_S
        board = await desk.board(-1, 1.0)
        assert set(board.reports) == {"alive"}
        assert all_closed(board.reports)

    asyncio.run(body())


def test_it_serves_once_all_replicas_do_and_fails_only_before_that() -> None:
    def after(*boards: list[Report]) -> Standing:
        stands: Standing = "starting"
        for reports in boards:
            named: dict[str, Any] = {str(number): report for number, report in enumerate(reports)}
            stands = standing(named, 2, stands)
        return stands

    assert after([], [LOADING], [RUNNING, LOADING]) == "starting"
    assert after([RUNNING, RUNNING]) == "serving"
    assert after([RUNNING, FAILED]) == "failed"
    assert after([RUNNING, RUNNING], [RUNNING, FAILED], [RUNNING]) == "serving", "the failed one is being replaced"
    assert after([FAILED], [RUNNING, RUNNING]) == "failed"


def test_a_failed_replica_has_nothing_left_to_end() -> None:
    assert all_closed({"a": CLOSED, "b": FAILED})
    assert not all_closed({"a": CLOSED, "b": Report("draining")})
