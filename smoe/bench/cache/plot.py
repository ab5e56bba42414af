"""Pictures: hit rate over capacity by eviction, and collisions of Least-Stale against both LRUs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smoe.bench.cache.grid import BELADY, DEMAND, EVICTIONS, LEAST_STALE, LRU_NO_TOUCH, LRU_TOUCH, ORACLES, RANDOM
from smoe.bench.cache.rows import Row

_COLLISIONS = (LRU_TOUCH, LRU_NO_TOUCH, "lfu", "frequency", *LEAST_STALE)
_ACCURACY = ORACLES[1]
_COLLISION_TICKS = (0, 0.1, 1, 10, 100)
MOST_COLUMNS = 3


def plot_hits(rows: Sequence[Row], trace: str, pool: str, path: Path) -> Path:
    """A panel for each prefetch policy: hit rate over capacity, a line an eviction."""
    here = [row for row in rows if row.point.trace == trace and row.point.pool == pool]
    prefetches = list(dict.fromkeys(row.point.prefetch for row in here))
    pyplot = _pyplot()
    lines = 1 if len(prefetches) <= MOST_COLUMNS else 2
    columns = -(-len(prefetches) // lines)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(3.8 * columns + 1.8, 3.7 * lines), sharey=True, layout="constrained", squeeze=False
    )
    for panel in axes.flat[len(prefetches) :]:
        panel.remove()
    for panel, prefetch in zip(axes.flat, prefetches, strict=False):
        for eviction in EVICTIONS:
            line = sorted(
                (row.point.percent, 100 * row.hit_rate)
                for row in here
                if row.point.prefetch == prefetch and row.point.eviction == eviction
            )
            if line:
                panel.plot(*zip(*line, strict=True), label=eviction, **_style(eviction))
        title = "demand only" if prefetch == DEMAND else f"prefetch {prefetch}"
        panel.set_title(title, fontsize=9)
        _capacity_axis(panel, here)
    for line in axes:
        line[0].set_ylabel("hits, % of accesses")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8)
    figure.suptitle(f"{trace}, {pool} pool", fontsize=10)
    return _save(pyplot, figure, path)


def plot_collisions(rows: Sequence[Row], pool: str, path: Path) -> Path:
    """A panel a trace: collision misses over capacity, with a prefetch that names five in six right."""
    here = [row for row in rows if row.point.pool == pool and row.point.prefetch == _ACCURACY]
    traces = list(dict.fromkeys(row.point.trace for row in here))
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(
        1, len(traces), figsize=(4.2 * len(traces) + 1.6, 4.0), layout="constrained", squeeze=False
    )
    for panel, trace in zip(axes[0], traces, strict=True):
        of_trace = [row for row in here if row.point.trace == trace]
        for eviction in _COLLISIONS:
            line = sorted(
                (row.point.percent, 100 * row.collision_rate) for row in of_trace if row.point.eviction == eviction
            )
            if line:
                panel.plot(*zip(*line, strict=True), label=eviction, **_style(eviction))
        panel.set_title(f"{trace}, prefetch {_ACCURACY}", fontsize=9)
        panel.set_yscale("symlog", linthresh=0.1)
        panel.set_ylim(-0.01, 110)
        panel.set_yticks(_COLLISION_TICKS, [f"{tick:g}" for tick in _COLLISION_TICKS])
        _capacity_axis(panel, of_trace)
    axes[0][0].set_ylabel("collision misses, % of accesses")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8)
    figure.suptitle(f"collision misses, {pool} pool (what is not above 0 has none)", fontsize=10)
    return _save(pyplot, figure, path)


def _style(eviction: str) -> dict[str, Any]:
    if eviction == RANDOM:
        return {"color": "grey", "linestyle": "--", "linewidth": 1.2}
    if eviction == BELADY:
        return {"color": "black", "linestyle": "--", "linewidth": 1.2}
    if eviction in LEAST_STALE:
        return {"color": f"C{LEAST_STALE.index(eviction)}", "marker": "o", "markersize": 3, "linewidth": 1.4}
    others = [name for name in EVICTIONS if name not in (RANDOM, BELADY, *LEAST_STALE)]
    index = others.index(eviction)
    color = ("C4", "C5", "C6", "C7", "C8", "C9", "navy")[index]
    return {"color": color, "linestyle": ":", "marker": "xv^sDP*"[index], "markersize": 4.5}


def _capacity_axis(panel: Any, rows: Sequence[Row]) -> None:
    percents = sorted({row.point.percent for row in rows})
    panel.set_xscale("log")
    panel.set_xticks(percents, [f"{percent:g}" for percent in percents])
    panel.minorticks_off()
    panel.set_xlabel("% of experts resident")
    panel.grid(alpha=0.3)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(pyplot: Any, figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
