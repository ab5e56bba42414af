import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from smoe.bench.slo.plot import plot
from smoe.bench.slo.raw import write_raw
from smoe.bench.slo.run import best_of, headline, result_of, search, sweep
from smoe.bench.slo.study import Offered, Point
from smoe.metrics.serving import RequestRecord
from smoe.metrics.slo import summarise
from tests.bench.slo_points import SLO, point, record, study


def falling(rate: float) -> float:
    return 1.0 if rate <= 3.3 else 0.5


def offers(*rates: float) -> list[Offered]:
    return [Offered(rate=rate) for rate in rates]


@pytest.mark.parametrize("start", [0.2, 1.0, 30.0])
def test_search_ends_just_below_what_the_server_bears(start: float) -> None:
    said: list[float | None] = []
    made_up = study(falling)
    points = search(made_up, 0.99, start, 0.05, lambda runs: said.append(runs[0].offered.rate))
    rates = [runs[0].offered.rate or 0.0 for runs in points]
    assert rates == sorted(rates)
    assert sorted(rate or 0.0 for rate in said) == rates
    best, *_ = headline(made_up, points, 0.99)
    assert best.value is not None
    assert best.value <= 3.3 < best.value * 1.06
    assert best.figure == "highest rate with 99 % within ttft:100"
    assert "/s missed" in (best.bound or "")


def test_search_ends_where_a_higher_rate_would_be_no_more_load() -> None:
    made_up = study(lambda _: 1.0)
    apart = made_up.at

    def at(offered: Offered) -> list[Point]:
        """From 8/s on all are sent at once."""
        runs: list[Point] = apart(offered)
        burst = replace(runs[0], load=replace(runs[0].load, records=(record(0, 0.05),) * 9))
        return runs if (offered.rate or 0.0) < 8 else [burst]

    made_up.at = at
    points = search(made_up, 0.99, 1.0, 0.05, lambda _: None)
    assert [runs[0].offered.rate for runs in points] == [1, 2, 4, 8]
    found = headline(made_up, points, 0.99)[0]
    assert found.value == 8
    assert "in flight at once" in (found.bound or "")


def test_a_share_below_all_is_enough_when_it_is_asked_for() -> None:
    made_up = study(lambda rate: 0.9)
    points = sweep(made_up, offers(1, 2), lambda _: None)
    assert best_of(made_up, points, 0.95) is None
    assert headline(made_up, points, 0.95)[0].bound == "none: the lowest tried, 1/s, missed"
    found = headline(made_up, points, 0.9)[0]
    assert (found.value, found.bound) == (2, "the highest tried")


def test_a_rate_above_one_that_missed_does_not_count() -> None:
    made_up = study({1.0: 1.0, 2.0: 0.5, 4.0: 1.0}.__getitem__)
    points = sweep(made_up, offers(4, 1, 2), lambda _: None)
    best = best_of(made_up, points, 0.99)
    assert best is not None
    assert best[0].offered.rate == 1.0


def test_figures_have_the_spread_of_their_repeats() -> None:
    runs = [point(Offered(rate=2.0), 1.0), point(Offered(rate=2.0), 0.9, repeat=1)]
    figures = {f.figure: f for f in result_of(study(falling), [runs], 0.99, {}).summary}
    within = figures["within the objectives at 2/s"]
    assert (within.value, within.spread) == (pytest.approx(95), (pytest.approx(90), pytest.approx(100)))
    late = figures["requests sent late, p99 of the worst run"]
    assert late.value == pytest.approx(1.0)
    assert late.met


def test_the_result_has_vllms_names_and_raw_times_give_them_again(tmp_path: Path) -> None:
    made_up = study(falling, repeats=2)
    points = sweep(made_up, offers(1, 8), lambda _: None)
    body = json.loads(result_of(made_up, points, 0.99, {"seed": 0}).write(tmp_path).read_text())
    [requests] = write_raw(points, tmp_path)
    lines = [json.loads(line) for line in gzip.decompress(requests.read_bytes()).splitlines()]
    assert len(body["samples"]["points"]) == 4
    for figures in body["samples"]["points"]:
        key = ("rate", "concurrency", "repeat")
        records = [
            RequestRecord(**{name: _tupled(value) for name, value in line.items() if name not in key})
            for line in lines
            if all(line[name] == figures[name] for name in key)
        ]
        again = summarise(records, figures["duration"], SLO)
        assert {name: figures[name] for name in again} == pytest.approx(again, abs=2e-3)
        assert {"mean_ttft_ms", "p90_tpot_ms", "p90_itl_ms", "request_goodput", "request_throughput"} <= figures.keys()


def test_pictures(tmp_path: Path) -> None:
    points = sweep(study(falling, repeats=2), offers(1, 8), lambda _: None)
    paths = plot(points, SLO, 99, tmp_path, "toy")
    assert [path.name for path in paths] == ["slo-load.png", "slo-cdf.png"]
    timeline = [
        {"at_s": t / 4, "running": 2, "waiting": t, "expert_hits": 3 * t, "expert_uses": 4 * t} for t in range(5)
    ]
    told = [[point(Offered(concurrency=4), 0.5, timeline=timeline)]]
    paths = plot(told, SLO, 99, tmp_path, "toy")
    assert [path.name for path in paths] == ["slo-load.png", "slo-cdf.png", "slo-timeline.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert [path.name for path in write_raw(told, tmp_path)] == ["slo.requests.jsonl.gz", "slo.timeline.jsonl.gz"]


def _tupled(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
