"""Serving as pictures: throughput and latencies over streams, and rates of a model larger than its memory."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any

from smoe.bench.serve.offloaded import SHARE, SLO, Found
from smoe.bench.serve.throughput import Runs

PANELS = (
    ("output_throughput", "tokens/s, all streams"),
    ("median_ttft_ms", "time to first token, median ms"),
    ("median_tpot_ms", "time a token after it, median ms"),
)
_WRAP = 90


def plot_streams(runs: Runs, path: Path, title: str) -> Path:
    figure, panels = _figure(len(PANELS))
    streams = list(runs)
    for axes, (key, label) in zip(panels, PANELS, strict=True):
        for index, name in enumerate(next(iter(runs.values()))):
            values = [[float(run[key]) for run in runs[count][name]] for count in streams]
            middle = [median(each) for each in values]
            spread = [
                [m - min(v) for m, v in zip(middle, values, strict=True)],
                [max(v) - m for m, v in zip(middle, values, strict=True)],
            ]
            axes.errorbar(streams, middle, yerr=spread, marker="o", capsize=3, color=f"C{index}", label=name)
        axes.set(xlabel="streams", ylabel=label, xscale="log", yscale="log")
        axes.set_xticks(streams, [str(count) for count in streams], minor=False)
        axes.minorticks_off()
        axes.grid(alpha=0.3, which="both")
    panels[0].legend()
    figure.suptitle(title)
    return _saved(figure, path)


def plot_rates(found: Sequence[Found], path: Path, title: str) -> Path:
    figure, [axes] = _figure(1, width=8.0)
    for row, each in enumerate(found):
        axes.barh(row, each.rate or 0.0, color="C0" if each.memory == found[0].memory else "C1")
        if each.rate is None:
            why = fill(each.why or "", _WRAP, initial_indent="  ", subsequent_indent="  ")
            axes.text(0, row, why, va="center", fontsize=7)
        elif each.missed is not None:
            axes.plot([each.missed], [row], marker="x", color="C3")
    axes.set_yticks(range(len(found)), [f"{each.method}, {each.memory}" for each in found])
    axes.invert_yaxis()
    axes.set(
        xlabel=f"requests/s with {100 * SHARE:g} % within {SLO}\n(cross: the lowest rate that missed; none: each held)"
    )
    axes.set_xlim(left=0)
    figure.suptitle(title)
    return _saved(figure, path)


def _figure(count: int, width: float = 4.6) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, count, figsize=(width * count, 4.0), layout="constrained", squeeze=False)
    return figure, panels[0]


def _saved(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
