"""Simulated engines side by side: the same demand on each, swept over rates or searched for the highest that holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from smoe.bench.result import Figure
from smoe.bench.slo.plot_timeline import save
from smoe.metrics.slo import Slo
from smoe.sim.serving.curve import Engine, Load, figures, highest, serve_at

_KEPT = ("p99_ttft_ms", "p99_tpot_ms", "p99_tbt_p90_ms")
_NEAR = 1.3
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    engine: Engine


@dataclass(frozen=True, slots=True)
class Simulated:
    """`points` in ascending order of rate. `rate` is the highest that held, where one was searched for; `bounded` as a
    Search has it."""

    case: Case
    points: tuple[dict[str, Any], ...]
    rate: float | None = None
    bounded: bool = True


def sweep(cases: Sequence[Case], load: Load, slo: Slo, rates: Sequence[float | None]) -> list[Simulated]:
    return [
        Simulated(case, tuple(figures(serve_at(case.engine, load, rate), slo, rate) for rate in rates))
        for case in cases
    ]


def search(
    cases: Sequence[Case], load: Load, slo: Slo, *, share: float, start: float, tolerance: float, note: Note
) -> list[Simulated]:
    """Each begins where the one before it ended, with smaller steps: rates are mostly alike."""
    found: list[Simulated] = []
    near, factor = start, 2.0
    for case in cases:
        limit, points = highest(case.engine, load, slo, share=share, start=near, tolerance=tolerance, factor=factor)
        found.append(Simulated(case, tuple(points), limit.rate, limit.bounded))
        note(f"{case.name}: {limit.rate:.3g} requests/s, {len(points)} rates tried")
        near, factor = (limit.rate, _NEAR) if limit.rate and limit.bounded else (start, 2.0)
    return found


def rate_figures(found: Sequence[Simulated], slo: Slo, share: float, prefix: str = "") -> list[Figure]:
    """The highest rates, and what each is over the first's."""
    made = []
    for one in found:
        at = next((point for point in one.points if point["request_rate"] == one.rate), None)
        like = "none held" if at is None else ", ".join(f"{key} {at[key]:.0f}" for key in _KEPT if at[key] is not None)
        first = found[0]
        over = f"; {one.rate / first.rate:.2f} x {first.case.name}" if one.rate and first.rate and one != first else ""
        name = f"{prefix}simulated: highest rate with {100 * share:g} % within {slo}, {one.case.name}"
        lasted = "" if at is None else f", over {at['duration']:.0f} s"
        lasted += "" if one.bounded else ", and nothing higher was tried"
        made.append(Figure(figure=name, value=one.rate, unit="requests/s", bound=like + lasted + over))
    return made


def points_of(found: Sequence[Simulated]) -> list[dict[str, Any]]:
    return [{"engine": one.case.name, **point} for one in found for point in one.points]


def print_cases(found: Sequence[Simulated], title: str) -> None:
    """Latencies in ms, of requests: median / 99th percentile."""
    table = Table(title=f"simulated, not measured: {title}; latencies in ms, p50 / p99", title_justify="left")
    table.add_column("engine")
    for column in ("requests/s", "within", "tokens/s", "TTFT", "TPOT", "TBT p90", "waiting"):
        table.add_column(column, justify="right")
    for one in found:
        for point in one.points:
            rate = "own" if point["request_rate"] is None else f"{point['request_rate']:.4g}"
            pairs = [_pair(point, name) for name in ("ttft", "tpot", "tbt_p90")]
            within, speed = f"{point['slo_attainment']:.1%}", f"{point['output_throughput']:,.0f}"
            table.add_row(one.case.name, rate, within, speed, *pairs, f"{point['most_waiting']:,}")
    Console(width=None if Console().is_terminal else 140).print(table)


def _pair(point: dict[str, Any], name: str) -> str:
    values = [point[f"{percent}_{name}_ms"] for percent in ("p50", "p99")]
    return " / ".join("-" if value is None else f"{value:,.4g}" for value in values)


def plot_cases(
    panels: Sequence[tuple[str, Sequence[Simulated]]], slo: Slo, share: float, path: Path, title: str
) -> Path:
    """A panel a named group: share within the objectives against the rate, a line a case."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(1 + 5.5 * columns, 0.6 + 3.4 * lines), layout="constrained", squeeze=False
    )
    for panel in axes.flat[len(panels) :]:
        panel.set_axis_off()
    for panel, (name, found) in zip(axes.flat, panels, strict=False):
        for number, one in enumerate(found):
            points = [point for point in one.points if point["request_rate"] is not None]
            rates = [point["request_rate"] for point in points]
            shares = [100 * point["slo_attainment"] for point in points]
            label = one.case.name + (f": {one.rate:.3g}/s" if one.rate else "")
            panel.plot(rates, shares, marker="os^Dv<>"[number % 7], markersize=4, color=f"C{number}", label=label)
        panel.axhline(100 * share, color="grey", linestyle="--", linewidth=1)
        panel.set(title=name, xlabel="requests/s offered", ylim=(0, 105), xscale="log")
        panel.title.set_fontsize(9)
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7, loc="lower left")
    for panel in axes[:, 0]:
        panel.set(ylabel=f"% within {slo}")
        panel.yaxis.label.set_fontsize(7)
    path.parent.mkdir(parents=True, exist_ok=True)
    return save(figure, path, f"simulated, not measured: {title}")
