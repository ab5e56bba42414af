"""Closed loops of 1 to 32 streams, the contenders in turns: tokens a second, and how long clients waited for them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from smoe.bench.result import Figure
from smoe.bench.serve.contenders import TRANSFORMERS, Contender, transformers_server
from smoe.bench.slo.client import Order, closed_loop
from smoe.metrics.slo import Slo, summarise

SLO = Slo.parse(["ttft:500", "tpot:50"])
STREAMS, QUICK_STREAMS = (1, 2, 4, 8, 16, 32), (1, 16)
AT, GOAL = 16, 3.0
Orders = Callable[[int, int], list[Order]]
"""(how many, seed) -> requests."""
Runs = Mapping[int, Mapping[str, Sequence[dict[str, Any]]]]
"""By streams and contender, the figures of each repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Each stream answers `per_stream` requests in a run."""

    streams: tuple[int, ...] = STREAMS
    per_stream: int = 3
    repeats: int = 3


def measure(contender: Contender, orders: Sequence[Order], streams: int) -> dict[str, Any]:
    """Raises StartupError when a request fails: a rate over the others would flatter."""
    with contender.turn():
        load = asyncio.run(closed_loop(contender.target, orders, streams)).whole(contender.name)
    return summarise(load.records, load.duration_s, SLO)


def fastest_setting(folder: Path, orders: Orders) -> tuple[str, dict[str, float]]:
    """Of `transformers serve` at 16 streams, and tokens/s of each setting."""
    rates = {}
    for setting in TRANSFORMERS:
        with transformers_server(setting, folder, setting) as contender:
            measure(contender, orders(2, 0), 2)
            rates[setting] = measure(contender, orders(AT, 1), AT)["output_throughput"]
    return max(rates, key=lambda setting: rates[setting]), rates


def compare(contenders: Sequence[Contender], orders: Orders, size: Size) -> Runs:
    runs: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for contender in contenders:
        measure(contender, orders(4, 0), 4)
    for streams in size.streams:
        found = runs.setdefault(streams, {contender.name: [] for contender in contenders})
        for repeat in range(size.repeats):
            batch = orders(streams * size.per_stream, 1 + repeat)
            for contender in contenders if repeat % 2 == 0 else contenders[::-1]:
                found[contender.name].append(measure(contender, batch, streams))
    return runs


def figures(runs: Runs, own: Sequence[str], peer: str) -> list[Figure]:
    found = []
    for streams, by_name in runs.items():
        theirs = _of(by_name[peer], "output_throughput")
        for name in own:
            ours = _of(by_name[name], "output_throughput")
            ratio, judged = ours / theirs, streams == AT
            found.append(
                Figure(
                    figure=f"{name}: output at {streams} streams over {peer}",
                    value=ratio,
                    unit="x",
                    goal=f">= {GOAL:g}x" if judged else None,
                    met=ratio >= GOAL if judged else None,
                    bound=f"{ours:,.0f} against {theirs:,.0f} tokens/s, both over HTTP, in turns",
                    spread=_ratios(by_name[name], by_name[peer]),
                )
            )
    for name in (*own, peer):
        for streams in runs:
            found += [_figure(name, key, streams, runs[streams][name]) for key in ("median_ttft_ms", "median_tpot_ms")]
            found.append(_figure(name, "request_goodput", streams, runs[streams][name]))
    return found


def _figure(name: str, key: str, streams: int, repeats: Sequence[dict[str, Any]]) -> Figure:
    values = [float(run[key]) for run in repeats if run[key] is not None]
    unit = "requests/s" if key == "request_goodput" else "ms"
    within = f" within {SLO}" if key == "request_goodput" else ""
    title = f"{name}: {key}{within} at {streams} streams"
    return Figure(figure=title, value=median(values), unit=unit, spread=(min(values), max(values)))


def _of(repeats: Sequence[dict[str, Any]], key: str) -> float:
    return median(float(run[key]) for run in repeats)


def _ratios(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> tuple[float, float]:
    pairs = [a["output_throughput"] / b["output_throughput"] for a, b in zip(ours, theirs, strict=True)]
    return min(pairs), max(pairs)
