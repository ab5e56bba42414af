"""`smoe bench cache`: which eviction suits which cache, prefetch and trace, by simulation."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from smoe.bench.cache.grid import DEMAND, EVICTIONS, LRU_NO_TOUCH, OPEN, PERCENTS, POOLS, Point, points
from smoe.bench.cache.open_pool import replay_open
from smoe.bench.cache.plot import plot_collisions, plot_hits
from smoe.bench.cache.report import explain, least_stale_figures, print_winners, winner_figures
from smoe.bench.cache.rows import Row, row, write_rows
from smoe.bench.cache.speed import speed_figures
from smoe.bench.cache.winners import contests, winners
from smoe.bench.result import Figure, Result
from smoe.core.expert_memory import ExpertMemory
from smoe.core.packaged_traces import open_trace
from smoe.core.route_trace import RouteTrace
from smoe.offload.policies.spec import parse_policies
from smoe.sim.forwards import Mode
from smoe.sim.predict import head
from smoe.sim.simulate import simulate

TRACES: tuple[tuple[str, Mode], ...] = (
    ("gpt-oss-20b", "decode"),
    ("deepseek-v2-lite", "prefill"),
    ("builtin", "decode"),
)
TOKENS, QUICK_TOKENS = {"decode": 256, "prefill": 2048}, {"decode": 128, "prefill": 1024}
SPEED_TOKENS = 1024
QUICK_PERCENTS = (5.0, 25.0)
WHOLE_TOKENS = 100_000
WHOLE_PERCENTS = (2.0, 5.0, 10.0, 25.0, 50.0)
WHOLE_EVICTIONS = tuple(
    name for name in EVICTIONS if name not in (LRU_NO_TOUCH, "least-stale:layer", "least-stale:four-tier")
)
"""With two pools and without prefetch: a hundred combinations, none the same as another where nothing is prefetched."""

Traces = Mapping[str, RouteTrace]
FanOut = Callable[[Callable[[Point, Traces], Row], Sequence[Point], Traces], Iterable[tuple[int, Row]]]
"""(index, function(item, common)) for every item, in any order, perhaps from other processes."""


def run(*, quick: bool, out: Path, fan_out: FanOut | None = None, trace: str | None = None) -> Result:
    """Minutes; `quick` less. `trace` is a route trace file, of which a hundred combinations replay up to 100,000 tokens
    as decoding: half an hour on two cores.

    Raises TraceError. Pictures go to `out`.
    """
    chosen = TRACES if trace is None else ((trace, "decode"),)
    limits = QUICK_TOKENS if quick else TOKENS
    traces = {name: head(open_trace(name), WHOLE_TOKENS if trace else limits[mode]) for name, mode in chosen}
    todo = _todo(chosen, traces, quick=quick, whole=trace is not None)
    result = Result(
        name="cache-whole" if trace else "cache-quick" if quick else "cache",
        config={
            "traces": {name: {"mode": mode, "tokens": traces[name].num_tokens} for name, mode in chosen},
            "percents": sorted({point.percent for point in todo}),
            "evictions": list(dict.fromkeys(point.eviction for point in todo)),
            "pools": list(dict.fromkeys(point.pool for point in todo)),
            "points": len(todo),
            "seed": 0,
        },
    )
    figures, samples = speed_figures(head(open_trace(chosen[0][0]), SPEED_TOKENS), repeats=2 if quick else 3)
    result.samples["accesses_per_s"] = samples
    for figure in figures:
        result.add(figure)
    rows = _sweep(todo, traces, fan_out or in_process, result)
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


def run_point(point: Point, traces: Traces) -> Row:
    trace = traces[point.trace]
    if point.pool == "open":
        spec = parse_policies(point.policy)
        replayed = replay_open(trace, spec, point.num_slots, mode=point.mode)
        return row(point, replayed.stats(), replayed.transfers, trace.num_tokens)
    # Half a slot on top: a fraction of slots a layer is rounded down to whole slots in all.
    memory = ExpertMemory("slots", (point.num_slots + 0.5) / len(trace.layers))
    result = simulate(trace, point.policy, memory, pool=point.pool, mode=point.mode)
    return row(point, result.experts, result.transfers, result.tokens)


def in_process(
    function: Callable[[Point, Traces], Row], items: Sequence[Point], common: Traces
) -> Iterable[tuple[int, Row]]:
    return ((index, function(item, common)) for index, item in enumerate(items))


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


def _sweep(todo: Sequence[Point], traces: Traces, fan_out: FanOut, result: Result) -> list[Row]:
    """Rows in the order of `todo`, with a figure of the time that they took."""
    began = time.perf_counter()
    found = dict(fan_out(run_point, todo, traces))
    seconds = time.perf_counter() - began
    rows = [found[index] for index in range(len(todo))]
    accesses = sum(each.accesses for each in rows)
    result.add(
        Figure(
            figure=f"sweep of {len(rows)} combinations",
            value=seconds,
            unit="s",
            bound=f"{accesses:,} accesses at {accesses / seconds:,.0f} a second over all processes",
        )
    )
    return rows
