"""The alpha-beta model, and times put together from several ranks' clocks."""

import pytest
import torch

from smoe.bench.comm.alpha_beta import Line, fit, predict
from smoe.bench.comm.cases import BASE, BEST, SCATTER
from smoe.bench.comm.formula import LayerBytes
from smoe.bench.comm.measure import Timed, _dispatch_share
from smoe.bench.comm.timed import Exchange, Moved, TimedGroup, seconds_of, together
from smoe.collectives.group import SoloGroup
from tests.collectives.thread_group import ThreadGroup, run_ranks


def test_a_line_is_found_again_through_its_points() -> None:
    line = Line(0.002, 4e-8)
    found = fit([(nbytes, line.seconds(nbytes)) for nbytes in (16, 1024, 100_000, 5_000_000)])
    assert (found.alpha_s, found.beta_s) == (pytest.approx(0.002), pytest.approx(4e-8))
    assert found.mbit_per_s == pytest.approx(200)


def test_small_exchanges_count_as_much_as_large_ones() -> None:
    """One bad large exchange must not move the latency: absolute errors would let it."""
    line = Line(0.001, 1e-8)
    points = [(nbytes, line.seconds(nbytes)) for nbytes in (16, 64, 256, 1_000_000)]
    points.append((100_000_000, 1.5 * line.seconds(100_000_000)))
    assert fit(points).alpha_s == pytest.approx(0.001, rel=0.05)


def test_each_schedule_is_the_sum_of_its_exchanges() -> None:
    wire = {"reduce": 800.0, "dispatch": 400.0, "combine": 200.0, "gather": 600.0}
    layer = LayerBytes(lar=0.5, rows=10, busiest_share=1.5, wire=wire, hidden_only=0.0)
    lines = {"all_to_all": Line(1.0, 0.01), "all_gather": Line(10.0, 0.1)}
    passes = (1 + 0.01 * 150) + (1 + 0.01 * 75) + (10 + 0.1 * 150)
    assert predict(lines, SCATTER, layer, 4) == pytest.approx(1 + 0.01 * 200 + passes)
    assert predict(lines, BASE, layer, 4) == pytest.approx((1 + 0.01 * 100) + (10 + 0.1 * 100) + passes)
    assert predict(lines, BEST, layer, 1) == 0.0


def exchange(purpose: str, start_s: float, end_s: float, *out_bytes: int) -> Exchange:
    return Exchange(purpose, out_bytes, start_s, end_s)


def test_an_exchange_lasts_from_the_last_arrival_to_the_last_departure() -> None:
    early = [exchange("reduce", 1.0, 5.0, 0, 10, 0), exchange("gather", 6.0, 7.0, 0, 1, 1)]
    late = [exchange("reduce", 4.0, 4.5, 20, 0, 0), exchange("gather", 5.5, 7.5, 1, 0, 1)]
    last = [exchange("reduce", 3.0, 4.0, 11, 0, 0), exchange("gather", 5.5, 6.0, 1, 1, 0)]
    first, second = together([early, late, last])
    # The busiest link is the one into the first rank.
    assert (first.seconds, first.busiest_bytes, first.began_s, first.ended_s) == (1.0, 31, 4.0, 5.0)
    assert second.seconds == 1.5


def test_exchanges_under_way_at_once_count_once() -> None:
    times = [(1.0, 3.0), (2.0, 2.5), (2.0, 4.0), (6.0, 7.0), (8.0, 7.5)]
    assert seconds_of([Moved("dispatch", b - a, 1, a, b) for a, b in times]) == 4.0


def test_the_share_of_dispatch_is_of_the_time_between_reduce_and_gather() -> None:
    """Two layers, the second of an all-reduce: two exchanges of one purpose. Answers of the first began early."""
    times = [("vocab", 0, 1), ("reduce", 1, 2), ("dispatch", 3, 5), ("combine", 4, 7), ("gather", 8, 9)]
    times += [("reduce", 9, 10), ("reduce", 10, 11), ("dispatch", 11, 12), ("combine", 12, 13), ("gather", 15, 16)]
    moved = together([[exchange(purpose, float(a), float(b), 0, 1) for purpose, a, b in times]] * 2)
    assert _dispatch_share(moved) == pytest.approx((4 + 2) / (6 + 4))
    assert Timed(10.0, 4.0, 1.0, 0.5).share == 0.4


def test_a_timed_group_says_what_left_and_when() -> None:
    def body(group: ThreadGroup) -> list[Exchange]:
        timed = TimedGroup(group)
        send = [1, 2] if group.rank == 0 else [0, 3]
        receive = [1, 0] if group.rank == 0 else [2, 3]
        timed.all_to_all(torch.zeros(3, 5, dtype=torch.uint8), send, receive, "dispatch")
        timed.all_gather(torch.zeros(2, 7, dtype=torch.uint8), "gather")
        transfer, room = timed.open("combine"), torch.zeros(9, dtype=torch.uint8)
        transfer.receive(1 - group.rank, room)
        transfer.send(1 - group.rank, torch.full((4,), 5, dtype=torch.uint8))
        transfer.arrived(1 - group.rank)
        assert room.tolist() == [5] * 4 + [0] * 5
        transfer.finish()
        return timed.exchanges

    first, second = run_ranks(2, body)
    assert [(e.purpose, e.out_bytes) for e in first] == [
        ("dispatch", (0, 10)),
        ("gather", (0, 14)),
        ("combine", (0, 4)),
    ]
    assert [e.out_bytes for e in second] == [(0, 0), (14, 0), (4, 0)]
    assert all(e.start_s <= e.end_s for e in (*first, *second))


def test_alone_nothing_travels() -> None:
    timed = TimedGroup(SoloGroup())
    timed.all_to_all(torch.zeros(4, 2), [4], [4], "dispatch")
    assert [e.out_bytes for e in timed.exchanges] == [(0,)]
