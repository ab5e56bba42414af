"""Figures of the serving benchmark, made from runs that are given; servers that are stopped between their turns."""

import os
import subprocess
import sys
from typing import Any

import pytest

from smoe.bench.serve import offloaded, overhead, throughput
from smoe.bench.serve.contenders import Contender
from smoe.bench.serve.offloaded import DEMAND, LOOKAHEAD, SELF_DRAFT, Found
from smoe.bench.serve.overhead import Ways
from smoe.bench.serve.plot import plot_rates, plot_streams
from smoe.bench.slo.client import Target


def run(rate: float) -> dict[str, Any]:
    return {"output_throughput": rate, "median_ttft_ms": 10.0, "median_tpot_ms": 1.0, "request_goodput": 2.0}


RUNS = {
    1: {"ours": [run(300.0)], "peer": [run(100.0)]},
    16: {"ours": [run(500.0), run(800.0)], "peer": [run(250.0)] * 2},
}


def test_the_goal_is_for_16_streams_and_spreads_are_of_pairs() -> None:
    found = {figure.figure: figure for figure in throughput.figures(RUNS, ["ours"], "peer")}
    one, many = (found[f"ours: output at {streams} streams over peer"] for streams in (1, 16))
    assert (one.value, one.goal, one.met) == (3.0, None, None)
    assert (many.value, many.met, many.spread) == (650 / 250, False, (2.0, 3.2))


def test_a_token_costs_what_it_is_later_and_the_step_beside_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "core_without_arithmetic", lambda: None)
    monkeypatch.setattr(overhead, "ms_per_step", lambda core, batch: 0.25)
    ways = Ways(
        request_ms={"engine": [3.0, 1.0, 3.0], "http": [9.0, 3.0, 4.0], "ray-serve": [9.0, 7.0, 7.0]},
        token_ms={"engine": [1.5, 1.0, 1.5], "http": [2.0, 3.0, 2.5], "ray-serve": [2.0, 1.25, 2.0]},
    )
    (request, token, by_ray, token_by_ray), samples = overhead.figures(ways, 3)
    assert (request.figure, token.figure) == (
        "server overhead a request, 16 at once",
        "server overhead a token, 16 streams",
    )
    assert (request.value, request.met, request.spread) == (2.0, True, (1.0, 6.0))
    assert (token.value, token.met, token.spread) == (1.25, False, (0.75, 2.25))
    assert by_ray.figure == "Ray Serve overhead a request, 16 at once"
    assert (by_ray.value, by_ray.met, by_ray.spread) == (6.0, False, (4.0, 6.0))
    assert token_by_ray.figure == "Ray Serve overhead a token, 16 streams"
    assert (token_by_ray.value, token_by_ray.met, token_by_ray.spread) == (0.75, True, (0.5, 0.75))
    assert token_by_ray.bound == (
        "HTTP 2.00 less engine 1.50 ms, each stream's, plus 0.25 ms of a step that is not the model's arithmetic"
    )
    assert samples["step_without_arithmetic_ms"] == [0.25] * 3


def load(rate: float, share: float) -> dict[str, Any]:
    return {"rate": rate, "share": share, "median_ttft_ms": 2000.0, "median_tpot_ms": None}


FOUND = [
    Found(memory="25%", method=DEMAND.name, rate=0.5, missed=0.7),
    Found(memory="25%", method=LOOKAHEAD.name, rate=1.0, points=(load(1.0, 0.95), load(0.5, 1.0))),
    Found(memory="25%", method=SELF_DRAFT.name, rate=None, why="the draft does not fit"),
]


def test_rates_are_compared_with_demand_paging_at_the_same_memory() -> None:
    demand, ahead, draft = offloaded.figures(FOUND)
    assert (demand.value, demand.bound) == (0.5, "0.7/s missed")
    assert ahead.value == 1.0
    assert ahead.bound == (
        "held at each of 2 loads; at least 2.00x demand LRU at 25%; "
        "at 0.5/s 100 % within, median TTFT 2,000 ms, TPOT none; at 1/s 95 % within, median TTFT 2,000 ms, TPOT none"
    )
    assert (draft.value, draft.bound) == (None, "the draft does not fit")


def test_pictures(tmp_path: Any) -> None:
    assert plot_streams(RUNS, tmp_path / "streams.png", "streams").stat().st_size > 10_000
    assert plot_rates(FOUND, tmp_path / "rates.png", "rates").stat().st_size > 10_000


def test_a_server_runs_in_its_turn_only() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:

        def becomes(state: int) -> bool:
            """Blocks until it does; the test's time limit is the other end."""
            return os.waitid(os.P_PID, child.pid, state) is not None

        try:
            contender = Contender(name="any", target=Target(base_url="http://127.0.0.1:1", model="m"), pid=child.pid)
            with contender.turn():
                assert os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOHANG) is None
            assert becomes(os.WSTOPPED)
            with contender.turn():
                assert becomes(os.WCONTINUED)
            assert becomes(os.WSTOPPED)
        finally:
            child.kill()
