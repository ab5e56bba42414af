"""One picture: rise in perplexity against substituted mass, and against time; gate weights by rank."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smoe.bench.quality.bootstrap import Interval
from smoe.bench.quality.gates import QUANTILES, GateWeights

TICKS = (0, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


def draw(
    path: Path,
    *,
    rises: Mapping[str, tuple[float, Interval]],
    millis: Mapping[str, float],
    gates: GateWeights,
    caption: str,
) -> None:
    """`rises`: mean mass and rise by policy; `millis`: a decode step of the inflated model by policy, maybe none."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import lines, pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(17, 5.2), constrained_layout=True)
    colours = {name: f"C{i}" for i, name in enumerate(rises)}
    _points(axes[0], rises, colours)
    axes[0].set(xlabel="substituted gate mass m, a token and layer", ylabel="rise in perplexity, %")
    axes[0].set_title("Rise against substituted mass")
    timed = {name: (millis[name], rise) for name, (_, rise) in rises.items() if name in millis}
    _points(axes[1], timed, colours)
    axes[1].set(xlabel="decode step, ms (inflated model, from disk)", ylabel="rise in perplexity, %")
    axes[1].set_title("Rise against time" if timed else "Rise against time: not measured")
    _gates(axes[2], gates)
    handles = [
        lines.Line2D([], [], marker="o", linestyle="", color=colour, label=name) for name, colour in colours.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(caption)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _points(axis: Any, points: Mapping[str, tuple[float, Interval]], colours: Mapping[str, str]) -> None:
    for name, (x, rise) in points.items():
        spread = [[100 * (rise.value - rise.low)], [100 * (rise.high - rise.value)]]
        axis.errorbar(x, 100 * rise.value, yerr=spread, marker="o", color=colours[name], capsize=3)
    axis.set_xlim(left=0)
    axis.set_yscale("symlog", linthresh=10)
    axis.set_ylim(bottom=-2)
    axis.set_yticks([tick for tick in TICKS if tick <= axis.get_ylim()[1]])
    axis.yaxis.set_major_formatter("{x:g}")
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.grid(alpha=0.3)


def _gates(axis: Any, gates: GateWeights) -> None:
    ranks: Sequence[int] = range(1, len(gates.quantiles) + 1)
    columns = list(zip(*gates.quantiles, strict=True))
    for low, high, alpha in ((0, 4, 0.2), (1, 3, 0.35)):
        label = f"{QUANTILES[low]:.0%} to {QUANTILES[high]:.0%}"
        axis.fill_between(ranks, columns[low], columns[high], alpha=alpha, color="C0", label=label)
    axis.plot(ranks, columns[2], color="C0", label="median")
    axis.axhline(gates.threshold, color="C3", linestyle="--", label=f"threshold {gates.threshold:.3g}")
    axis.set(xlabel="rank of the expert in its token's choice", ylabel="gate weight, sum 1", title="Gate weights")
    axis.set_xticks(list(ranks))
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend()
