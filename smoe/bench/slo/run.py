"""`smoe bench slo`: how many requests a second a server bears while a share of them meets the objectives."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from smoe.bench.result import Figure, Result
from smoe.bench.slo.study import Offered, Point, Study, attainment
from smoe.metrics.search import highest_rate

NAME = "slo"
_KEPT = ("request_goodput", "output_throughput", "p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms")
_KEPT_TAILS = ("p99_tbt_p90_ms", "p99_e2el_ms")
_LATE_MS = 10.0
_UNITS = {"request_goodput": "requests/s", "output_throughput": "tokens/s"}
OnPoint = Callable[[Sequence[Point]], None]


def sweep(study: Study, offers: Sequence[Offered], on_point: OnPoint) -> list[list[Point]]:
    points = []
    for offered in offers:
        points.append(study.at(offered))
        on_point(points[-1])
    return points


def search(study: Study, share: float, start: float, tolerance: float, on_point: OnPoint) -> list[list[Point]]:
    """Points of rates around the highest that holds, in ascending order. Rates below start / 64 are not tried, nor any
    above one that holds with all requests in flight at once: it would be the same load."""
    points: list[list[Point]] = []

    def holds(rate: float) -> bool:
        points.append(study.at(Offered(rate=rate)))
        on_point(points[-1])
        held = attainment(points[-1], study.slo) >= share
        if held and _all_at_once(points[-1]):
            raise _NoMoreLoad
        return held

    with contextlib.suppress(_NoMoreLoad):
        highest_rate(holds, start=start, tolerance=tolerance, lowest=start / 64)
    return sorted(points, key=lambda runs: runs[0].offered.rate or 0.0)


class _NoMoreLoad(Exception):
    pass


def _all_at_once(runs: Sequence[Point]) -> bool:
    """In each run the last request went out before the first answer ended."""
    return all(
        max(record.sent_s for record in point.load.records)
        < min((record.chunk_s[-1] for record in point.load.records if not record.failed), default=0.0)
        for point in runs
    )


def headline(study: Study, points: Sequence[Sequence[Point]], share: float) -> list[Figure]:
    """The highest rate that held and what it was like; how late the client was."""
    return [*_best_figures(study, points, best_of(study, points, share), share), _lateness(points)]


def result_of(study: Study, points: Sequence[Sequence[Point]], share: float, config: Mapping[str, object]) -> Result:
    """The headline, figures of each load, and under `points` what vLLM's serving benchmark would say of each run."""
    result = Result(name=NAME, config=dict(config))
    for figure in (*headline(study, points, share), *(f for runs in points for f in _point_figures(study, runs))):
        result.add(figure)
    result.samples["points"] = [{**key_of(point), **point.figures} for runs in points for point in runs]
    return result


def key_of(point: Point) -> dict[str, object]:
    return {"rate": point.offered.rate, "concurrency": point.offered.concurrency, "repeat": point.repeat}


def best_of(study: Study, points: Sequence[Sequence[Point]], share: float) -> Sequence[Point] | None:
    """The highest rate below the first that misses; None where there is none."""
    best = None
    for runs in sorted((runs for runs in points if runs[0].offered.rate), key=lambda runs: runs[0].offered.rate or 0.0):
        if attainment(runs, study.slo) < share:
            break
        best = runs
    return best


def _best_figures(
    study: Study, points: Sequence[Sequence[Point]], best: Sequence[Point] | None, share: float
) -> list[Figure]:
    rates = [runs[0].offered.rate for runs in points if runs[0].offered.rate]
    if not rates:
        return []
    above = [rate for rate in rates if best is None or rate > (best[0].offered.rate or 0.0)]
    if best is None:
        bound = f"none: the lowest tried, {min(rates):.4g}/s, missed"
    else:
        bound = f"{min(above):.4g}/s missed" if above else "the highest tried"
        if not above and _all_at_once(best):
            bound += ": all requests of a run were in flight at once, and more of them may miss"
    name = f"highest rate with {100 * share:g} % within {study.slo}"
    rate = None if best is None else best[0].offered.rate
    figures = [Figure(figure=name, value=rate, unit="requests/s", bound=bound)]
    if best is not None:
        figures += [_figure(f"{key} at it", key, best) for key in (*_KEPT, *_KEPT_TAILS)]
    return figures


def _point_figures(study: Study, runs: Sequence[Point]) -> list[Figure]:
    where = runs[0].offered
    shares = [100 * attainment([point], study.slo) for point in runs]
    pooled = 100 * attainment(runs, study.slo)
    within = Figure(figure=f"within the objectives at {where}", value=pooled, unit="%", spread=_spread(shares))
    return [within, _figure(f"output_throughput at {where}", "output_throughput", runs)]


def _figure(name: str, key: str, runs: Sequence[Point]) -> Figure:
    values = [point.figures[key] for point in runs if point.figures[key] is not None]
    middle = median(values) if values else None
    return Figure(figure=name, value=middle, unit=_UNITS.get(key, "ms"), spread=_spread(values))


def _lateness(points: Sequence[Sequence[Point]]) -> Figure:
    late = max(point.figures["p99_late_ms"] for runs in points for point in runs)
    goal = f"<= {_LATE_MS:g} ms; beyond it the client is the bound"
    return Figure(
        figure="requests sent late, p99 of the worst run", value=late, unit="ms", goal=goal, met=late <= _LATE_MS
    )


def _spread(values: Sequence[float]) -> tuple[float, float] | None:
    return (min(values), max(values)) if len(values) > 1 else None
