"""Figures, their goals and pictures from series that are made up."""

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from smoe.bench.comm.alpha_beta import Line
from smoe.bench.comm.cases import BASE, BEST, CASES, DEDUP, Case, Work
from smoe.bench.comm.formula import LayerBytes
from smoe.bench.comm.load import LoadPlan, latencies_ms
from smoe.bench.comm.measure import Counted, Key, Series, Timed, in_turn
from smoe.bench.comm.plot import plot_growth, plot_speed
from smoe.bench.comm.report import add_figures
from smoe.bench.comm.report_model import add_load_figures, add_model_figures
from smoe.bench.result import Figure, Result
from smoe.metrics.latency import RequestTimes

STEP_S = {BASE.name: 2.0, DEDUP.name: 1.5, BEST.name: 1.0}
WIRE = {"reduce": 100.0, "dispatch": 100.0, "combine": 100.0, "gather": 100.0}


def series_of(case: Case, rows: int, phase: str, step_s: float) -> Series:
    half = {name: nbytes / 2 for name, nbytes in WIRE.items()} if case == BEST else WIRE
    formula = LayerBytes(lar=0.5, rows=10.0, busiest_share=1.0, wire=half, hidden_only=0.0)
    counted = Counted(ledger=dict(half), formula=formula, classes={}, next_tokens=())
    work = Work(phase, (((0,) * rows, 0, 0, 0),))  # type: ignore[arg-type]
    passes = [Timed(step_s * factor, step_s / 2, 0.1, 0.6) for factor in (1.0, 1.1, 0.9)]
    return Series(case, work, counted, passes)


@pytest.fixture
def series() -> dict[Key, Series]:
    found = {}
    for phase, rows in (("prefill", 8), ("prefill", 16), ("decode", 4)):
        for case in CASES:
            each = series_of(case, rows, phase, STEP_S.get(case.name, 1.2))
            found[200, 4, each.work.name, case.name] = each
    return found


def figures(result: Result) -> dict[str, Figure]:
    return {figure.figure: figure for figure in result.summary}


def test_goals_are_of_the_slow_link_and_prefill(series: dict[Key, Series]) -> None:
    result = Result(name="comm", config={})
    add_figures(result, series, hosts=4, slow=200)
    found = figures(result)
    over_base = found["200 Mbit/s, prefill: speculative + grouping over allreduce"]
    over_dedup = found["200 Mbit/s, prefill: speculative + grouping over allreduce, de-duplicated"]
    assert (over_base.value, over_base.met, over_base.goal) == (pytest.approx(2.0), True, ">= 1.7 x")
    assert (over_dedup.value, over_dedup.met, over_dedup.goal) == (pytest.approx(1.5), True, ">= 1.3 x")
    assert found["200 Mbit/s, decode: speculative + grouping over allreduce"].goal is None
    saved = found["prefill 16: bytes of speculative + grouping below allreduce"]
    assert (saved.value, saved.met) == (pytest.approx(50.0), True)
    assert found["200 Mbit/s, prefill 16: allreduce"].value == pytest.approx(8.0)
    assert "50 % of the step in exchanges" in str(found["200 Mbit/s, prefill 16: allreduce"].bound)
    assert len(result.samples["series"]) == len(series)  # type: ignore[arg-type]


def test_a_ledger_that_is_off_by_a_byte_is_told(series: dict[Key, Series]) -> None:
    key = next(iter(series))
    wrong = series[key].counted
    series[key].counted = replace(wrong, ledger=wrong.ledger | {"dispatch": wrong.ledger["dispatch"] + 1 / 6})
    result = Result(name="comm", config={})
    add_figures(result, series, hosts=4, slow=200)
    figure = figures(result)["ledger equal to the formula, to the byte"]
    assert (figure.met, figure.value) == (False, pytest.approx(1 - 1 / len(series)))


def test_pictures_of_all_series(series: dict[Key, Series], tmp_path: Path) -> None:
    rows = [
        {
            "mbit": 200,
            "ranks": n,
            "phase": "prefill",
            "rows": t,
            "case": c.name,
            "predicted_ms": 1.0,
            "measured_ms": 2.0,
        }
        for n in (1, 2, 4)
        for t in (8, 16)
        for c in CASES
    ]
    for path in (plot_speed(series, 4, tmp_path / "speed.png"), plot_growth(rows, tmp_path / "growth.png")):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_model_is_judged_by_how_far_it_is_off() -> None:
    pairs = ((1.0, 2.0), (3.0, 2.0), (2.0, 2.0))
    rows = [{"mbit": 200, "ranks": 4, "predicted_ms": p, "measured_ms": m} for p, m in pairs]
    result = Result(name="comm", config={})
    add_model_figures(result, rows, {(200, 4): {"all_to_all": Line(0.001, 4e-8)}})
    (figure,) = result.summary
    assert figure.value == pytest.approx(50.0)
    assert "all_to_all: 1.00 ms, 200 Mbit/s" in str(figure.bound)


def test_latencies_of_a_load() -> None:
    times = [RequestTimes(sent_s=0.0, chunks_s=(1.0, 1.5, 2.5), num_tokens=3)] * 3
    found = latencies_ms(times)
    assert found == {"ttft": 1000.0, "tpot": 750.0, "p90 tbt": 1000.0}
    result = Result(name="comm", config={})
    plan = LoadPlan(requests=3, concurrency=1, prompt_tokens=4, new_tokens=3)
    add_load_figures(result, {BASE.name: found, BEST.name: found}, 200, plan)
    assert [figure.value for figure in result.summary] == [1000.0, 750.0, 1000.0]
    assert median(figure.value or 0 for figure in result.summary) == 1000.0


def test_cases_take_turns_forwards_and_backwards() -> None:
    assert [list(in_turn([1, 2, 3], number)) for number in range(3)] == [[1, 2, 3], [3, 2, 1], [1, 2, 3]]
