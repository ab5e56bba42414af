"""Time a token by memory and method, and how many experts a window asks for, as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from smoe.bench.speculation.compare import Measured
from smoe.bench.speculation.reading import uniform_union
from smoe.bench.speculation.report import tpot_ms


def plot(
    measured: Sequence[Measured], unions: Mapping[int, float], path: Path, *, num_experts: int, top_k: int
) -> Path:
    """Writes a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (times, growth) = pyplot.subplots(1, 2, figsize=(12, 4.4), layout="constrained")
    names = list(dict.fromkeys(name for each in measured for name in each.runs))
    for name in names:
        points = sorted((each.percent, tpot_ms(each.runs[name])) for each in measured if name in each.runs)
        xs, ys = zip(*points, strict=True)
        times.plot(xs, ys, marker="o", label=name)
    times.set(xlabel="memory for experts, draft included, % of all", ylabel="ms a token, batch 1")
    times.set_ylim(bottom=0)
    widths = list(unions)
    growth.plot(widths, [unions[width] for width in widths], marker="o", label="the model's routers")
    even = [uniform_union(num_experts, top_k, width) for width in widths]
    growth.plot(widths, even, linestyle="--", color="grey", label="independent and even")
    growth.axhline(num_experts, color="grey", linewidth=1)
    growth.set(xlabel="tokens of a window", ylabel=f"distinct experts a layer, of {num_experts}", xscale="log")
    growth.set_ylim(bottom=0)
    growth.set_xticks(widths, [str(width) for width in widths])
    growth.minorticks_off()
    for axes in (times, growth):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
