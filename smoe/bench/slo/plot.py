"""Pictures of a study: objectives and throughput against load, distributions of latencies, what went on in time."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from smoe.bench.slo.plot_timeline import plot_timeline, save
from smoe.bench.slo.study import Point, attainment
from smoe.metrics.slo import Slo, latency_ms

_CDFS = (("ttft", "TTFT"), ("tpot", "TPOT"), ("tbt_p90", "p90 TBT of a request"))


def plot(points: Sequence[Sequence[Point]], slo: Slo, percent: float, folder: Path, title: str) -> list[Path]:
    """Writes slo-load.png, slo-cdf.png and, where the server told of itself, slo-timeline.png."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    paths = [_load(points, slo, percent, folder / "slo-load.png", title)]
    paths.append(_cdfs(points, slo, folder / "slo-cdf.png", title))
    told = [runs for runs in points if any(point.timeline for point in runs)]
    if told:
        paths.append(plot_timeline(told[-1][-1], folder / "slo-timeline.png", title))
    return paths


def _load(points: Sequence[Sequence[Point]], slo: Slo, percent: float, path: Path, title: str) -> Path:
    from matplotlib import pyplot

    figure, (share, speed) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    xs, label = _loads(points)
    met = [[100 * attainment([point], slo) for point in runs] for runs in points]
    share.plot(xs, [100 * attainment(runs, slo) for runs in points], marker="o", label=f"within {slo}")
    _dots(share, xs, met)
    share.axhline(percent, color="grey", linestyle="--", linewidth=1, label=f"goal: {percent:g} %")
    share.set(ylabel="% of requests within the objectives", ylim=(0, 105))
    lines = (("request_throughput", "answered", "C0", 4), ("request_goodput", "within objectives", "C2", 1.5))
    for key, name, color, width in lines:  # the wide one is still seen where both are the same
        values = [[point.figures[key] for point in runs] for runs in points]
        speed.plot(xs, [median(each) for each in values], marker="o", color=color, linewidth=width, label=name)
        _dots(speed, xs, values, color)
    if label.startswith("requests"):
        speed.plot(xs, xs, color="grey", linestyle=":", linewidth=1, label="offered")
    speed.set(ylabel="requests/s")
    speed.set_ylim(bottom=0)
    for axes in (share, speed):
        axes.set(xlabel=label)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return save(figure, path, title)


def _cdfs(points: Sequence[Sequence[Point]], slo: Slo, path: Path, title: str) -> Path:
    from matplotlib import pyplot
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    figure, panels = pyplot.subplots(1, len(_CDFS), figsize=(13, 4), layout="constrained", sharey=True)
    colors = pyplot.get_cmap("viridis")
    limits = dict(slo.limits_ms)
    for axes, (name, label) in zip(panels, _CDFS, strict=True):
        for index, runs in enumerate(points):
            done = [record for point in runs for record in point.load.records if not record.failed]
            values = sorted(v for record in done if (v := latency_ms(name, record)) is not None)
            if values:
                shares = [100 * (i + 1) / len(values) for i in range(len(values))]
                color = colors(index / max(1, len(points) - 1) * 0.9)
                axes.step(
                    values, shares, where="post", color=color, label=str(runs[0].offered) if axes is panels[0] else None
                )
        if name in limits:
            axes.axvline(
                limits[name], color="red", linestyle="--", linewidth=1, label=f"objective: {limits[name]:g} ms"
            )
        axes.set(xlabel=f"{label}, ms", xscale="log", ylim=(0, 101))
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
    panels[0].set(ylabel="% of answered requests")
    return save(figure, path, title)


def _loads(points: Sequence[Sequence[Point]]) -> tuple[list[float], str]:
    offered = [runs[0].offered for runs in points]
    if offered[0].concurrency is not None:
        return [float(each.concurrency or 0) for each in offered], "requests in flight"
    rates = [
        each.rate if each.rate is not None else runs[0].figures["request_throughput"]
        for each, runs in zip(offered, points, strict=True)
    ]
    return rates, "requests/s offered"


def _dots(axes: Any, xs: Sequence[float], values: Sequence[Sequence[float]], color: str = "C0") -> None:
    for x, each in zip(xs, values, strict=True):
        if len(each) > 1:
            axes.scatter([x] * len(each), each, s=10, color=color, alpha=0.5)
