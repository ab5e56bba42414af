"""Speed and share of the bound over capacity, as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from smoe.bench.offload.bound import shares, tokens_per_s
from smoe.bench.offload.measure import Capacity

Curve = list[tuple[float, float]]
"""(percent resident, tokens/s)."""


def plot(measured: Sequence[Capacity], predicted: Mapping[str, Curve], path: Path) -> Path:
    """Writes a PNG: measured medians with their spread and predictions, and the share of each turn's bound."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (speed, share) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    names = list(measured[0].rounds[0].samples)
    percents = [found.percent for found in measured]
    for index, name in enumerate(names):
        color = f"C{index}"
        _with_spread(speed, percents, [tokens_per_s(found.rounds, name) for found in measured], name, color)
        _with_spread(share, percents, [_percent(shares(found.rounds, name)) for found in measured], name, color)
        if name in predicted:
            xs, ys = zip(*predicted[name], strict=True)
            speed.plot(xs, ys, linestyle=":", marker="x", color=color, label=f"{name}, predicted")
    resident = median(1 / r.bound.compute_s for found in measured for r in found.rounds)
    speed.axhline(resident, color="grey", linestyle="--", linewidth=1, label="all experts resident")
    speed.set(ylabel="tokens/s, batch 1")
    speed.set_ylim(bottom=0)
    share.axhline(100, color="grey", linestyle="--", linewidth=1)
    share.axhline(85, color="grey", linestyle=":", linewidth=1, label="goal: 85 %")
    share.set(ylabel="% of max(arithmetic, moved bytes / link)", ylim=(0, 110))
    for axes in (speed, share):
        axes.set(xlabel="% of experts resident", xscale="log")
        axes.set_xticks(percents, [f"{p:g}" for p in percents])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _percent(values: Sequence[float]) -> list[float]:
    return [100 * value for value in values]


def _with_spread(axes: Any, xs: Sequence[float], values: Sequence[Sequence[float]], label: str, color: str) -> None:
    middle = [median(each) for each in values]
    below = [m - min(each) for m, each in zip(middle, values, strict=True)]
    above = [max(each) - m for m, each in zip(middle, values, strict=True)]
    axes.errorbar(xs, middle, yerr=[below, above], marker="o", capsize=3, label=label, color=color)
