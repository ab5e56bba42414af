"""`smoe bench cache`: which eviction suits which cache, prefetch and trace, by simulation."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from smoe.bench.cache.grid import DEMAND, EVICTIONS, LRU_NO_TOUCH, OPEN, PERCENTS, POOLS, Point, points
from smoe.bench.cache.plot import plot_collisions, plot_hits
from smoe.bench.cache.points import Traces, groups, run_points
from smoe.bench.cache.report import explain, least_stale_figures, print_winners, winner_figures
from smoe.bench.cache.rows import Row, write_rows
from smoe.bench.cache.speed import speed_figures
from smoe.bench.cache.winners import contests, winners
from smoe.bench.result import Figure, Result
from smoe.core.packaged_traces import open_trace
from smoe.core.route_edit import select_sequences, take_rows
from smoe.core.route_trace import RouteTrace
from smoe.sim.forwards import Mode
from smoe.sim.predict import head

TRACES: tuple[tuple[str, Mode], ...] = (
    ("gpt-oss-20b", "decode"),
    ("deepseek-v2-lite", "prefill"),
    ("builtin", "decode"),
)
TOKENS, QUICK_TOKENS = {"decode": 256, "prefill": 2048}, {"decode": 128, "prefill": 1024}
SPEED_TOKENS = {"decode": 256, "prefill": 1024}
QUICK_PERCENTS = (5.0, 25.0)
WHOLE_TOKENS = 100_000
WHOLE_PERCENTS = (2.0, 5.0, 10.0, 25.0, 50.0)
WHOLE_EVICTIONS = tuple(
    name for name in EVICTIONS if name not in (LRU_NO_TOUCH, "least-stale:layer", "least-stale:four-tier")
)
"""With two pools and without prefetch: a hundred combinations, none the same as another where nothing is prefetched."""

FanOut = Callable[
    [Callable[[Sequence[Point], Traces], list[Row]], Sequence[Sequence[Point]], Traces],
    Iterable[tuple[int, list[Row]]],
]
"""(index, function(item, common)) for every item, in any order, perhaps from other processes."""
OnProgress = Callable[[int, int], None]
"""Gets the combinations done and all there are."""


def run(
    *,
    quick: bool,
    out: Path,
    fan_out: FanOut | None = None,
    trace: str | None = None,
    on_progress: OnProgress | None = None,
) -> Result:
    """Minutes; `quick` less. `trace` is a route trace file or name, of which a hundred combinations replay 100,000
    tokens as decoding, its sequences repeated as often as that takes.

    Raises TraceError. Pictures go to `out`.
    """
    chosen = TRACES if trace is None else ((trace, "decode"),)
    limits = QUICK_TOKENS if quick else TOKENS
    opened = {name: open_trace(name) for name, _ in chosen}
    traces = {
        name: repeated(opened[name], WHOLE_TOKENS) if trace else head(opened[name], limits[mode])
        for name, mode in chosen
    }
    todo = _todo(chosen, traces, quick=quick, whole=trace is not None)
    result = Result(
        name="cache-whole" if trace else "cache-quick" if quick else "cache",
        config={
            "traces": {
                name: {"mode": mode, "tokens": traces[name].num_tokens, "tokens_recorded": opened[name].num_tokens}
                for name, mode in chosen
            },
            "percents": sorted({point.percent for point in todo}),
            "evictions": list(dict.fromkeys(point.eviction for point in todo)),
            "pools": list(dict.fromkeys(point.pool for point in todo)),
            "points": len(todo),
            "seed": 0,
        },
    )
    figures, samples = speed_figures(
        {name: (mode, head(opened[name], SPEED_TOKENS[mode])) for name, mode in chosen}, repeats=1 if quick else 3
    )
    result.samples["accesses_per_s"] = samples
    for figure in figures:
        result.add(figure)
    rows = _sweep(todo, traces, fan_out or in_process, result, on_progress)
    found, fights = winners(rows), contests(rows)
    for figure in (*winner_figures(found), *least_stale_figures(fights)):
        result.add(figure)
    result.samples["rows"] = write_rows(rows, out / f"{result.name}.csv").name
    result.samples["winners"] = [asdict(each) for each in found]
    result.samples["least_stale"] = [explain(each) for each in fights]
    print_winners(found)
    for name, _ in chosen:
        for pool in dict.fromkeys(point.pool for point in todo):
            plot_hits(rows, name, pool, out / f"{result.name}-{Path(name).name}-{pool}.png")
    if trace is None:
        plot_collisions(rows, OPEN, out / f"{result.name}-collisions.png")
    return result


def in_process(
    function: Callable[[Sequence[Point], Traces], list[Row]], items: Sequence[Sequence[Point]], common: Traces
) -> Iterable[tuple[int, list[Row]]]:
    return ((index, function(item, common)) for index, item in enumerate(items))


def repeated(trace: RouteTrace, tokens: int) -> RouteTrace:
    """Its sequences over and over, to the first `tokens` tokens."""
    times = -(-tokens // trace.num_tokens)
    whole = select_sequences(trace, list(range(trace.num_sequences)) * times)
    starts = np.unique(np.minimum(whole.sequence_start, tokens))
    return take_rows(whole, np.arange(tokens), starts)


def _todo(chosen: Sequence[tuple[str, Mode]], traces: Traces, *, quick: bool, whole: bool) -> list[Point]:
    if not whole:
        percents = QUICK_PERCENTS if quick else PERCENTS
        return [point for name, mode in chosen for point in points(name, traces[name], mode, percents=percents)]
    pools = tuple(pool for pool in POOLS if pool != OPEN)
    return [
        point
        for name, mode in chosen
        for point in points(
            name,
            traces[name],
            mode,
            percents=WHOLE_PERCENTS,
            evictions=WHOLE_EVICTIONS,
            pools=pools,
            prefetches=(DEMAND,),
        )
    ]


def _sweep(
    todo: Sequence[Point], traces: Traces, fan_out: FanOut, result: Result, on_progress: OnProgress | None
) -> list[Row]:
    """Rows in the order of `todo`, with a figure of the time that they took."""
    began = time.perf_counter()
    together = groups(todo)
    found: dict[int, Row] = {}
    for number, rows in fan_out(run_points, [[todo[index] for index in group] for group in together], traces):
        found.update(zip(together[number], rows, strict=True))
        if on_progress is not None:
            on_progress(len(found), len(todo))
    seconds = time.perf_counter() - began
    in_order = [found[index] for index in range(len(todo))]
    accesses = sum(each.accesses for each in in_order)
    tokens = sum(trace.num_tokens for trace in traces.values())
    result.add(
        Figure(
            figure=f"sweep of {len(todo)} combinations over {tokens:,} tokens",
            value=seconds,
            unit="s",
            bound=f"{accesses:,} accesses at {accesses / seconds:,.0f} a second over all processes",
        )
    )
    return in_order
