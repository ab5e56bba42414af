"""Load points as a table, a row a run."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from smoe.bench.slo.study import Point

_MS = ""
"""Three digits, or whole milliseconds."""
_COLUMNS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("done", ("completed",), "{:d}"),
    ("failed", ("failed",), "{:d}"),
    ("within", ("slo_attainment",), "{:.1%}"),
    ("tok/s", ("output_throughput",), "{:,.0f}"),
    ("TTFT", ("p50_ttft_ms", "p99_ttft_ms"), _MS),
    ("TPOT", ("p50_tpot_ms", "p99_tpot_ms"), _MS),
    ("TBT p90", ("p50_tbt_p90_ms", "p99_tbt_p90_ms"), _MS),
    ("late", ("p99_late_ms",), "{:,.1f}"),
)


def print_points(points: Sequence[Sequence[Point]]) -> None:
    """Latencies in milliseconds: median / 99th percentile over requests; of lateness the latter."""
    table = Table(title="load points; latencies in ms, p50 / p99 of requests", title_justify="left")
    table.add_column("load")
    for name, _, _ in _COLUMNS:
        table.add_column(name, justify="right")
    for runs in points:
        for point in runs:
            table.add_row(str(point.offered), *(_cells(point, keys, form) for _, keys, form in _COLUMNS))
    Console().print(table)


def one_line(runs: Sequence[Point]) -> str:
    """For whoever waits."""
    figures = [point.figures for point in runs]
    within = ", ".join(_cell(each["slo_attainment"], "{:.1%}") for each in figures)
    failed = sum(each["failed"] for each in figures)
    return f"{runs[0].offered}: within the objectives {within}" + (f"; {failed} failed" if failed else "")


def _cells(point: Point, keys: Sequence[str], form: str) -> str:
    return " / ".join(_cell(point.figures[key], form) for key in keys)


def _cell(value: Any, form: str) -> str:
    if value is None:
        return "-"
    return (form or ("{:.3g}" if value < 100 else "{:,.0f}")).format(value)
