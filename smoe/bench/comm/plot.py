"""Throughput and bytes by case, and the cost of a layer's exchanges against the alpha-beta model, as pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smoe.bench.comm.cases import BASE, BEST, CASES, SCATTER
from smoe.bench.comm.measure import Series
from smoe.bench.comm.report import Key


def plot_speed(series: Mapping[Key, Series], hosts: int, path: Path) -> Path:
    """One panel for each rate and phase: tokens/s over rows a step, with the spread; and one of bytes a token."""
    pyplot = _pyplot()
    own = {key: each for key, each in series.items() if key[1] == hosts}
    panels = list(dict.fromkeys((key[0], each.work.phase) for key, each in own.items()))
    figure, axes = pyplot.subplots(1, len(panels) + 1, figsize=(4.6 * (len(panels) + 1), 4.4), layout="constrained")
    for (mbit, phase), at in zip(panels, axes, strict=False):
        for index, case in enumerate(CASES):
            found = [s for key, s in own.items() if key[0] == mbit and s.work.phase == phase and s.case == case]
            rates = [each.rate for each in found]
            low = [each.rate - min(each.tokens_per_s()) for each in found]
            high = [max(each.tokens_per_s()) - each.rate for each in found]
            xs = [each.work.rows for each in found]
            at.errorbar(xs, rates, yerr=[low, high], marker="o", capsize=3, label=case.name, color=f"C{index}")
        at.set(title=f"{phase}, {mbit} Mbit/s (emulated)", xlabel="rows a step", ylabel="tokens/s", xscale="log")
        at.set_xticks(xs, [str(x) for x in xs])
        at.minorticks_off()
        at.set_ylim(bottom=0)
        at.grid(alpha=0.3)
    axes[0].legend(fontsize=7)
    _bars(axes[-1], own)
    return _save(figure, path)


def plot_growth(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Measured points and predicted lines over the tokens of a prefill step, by ranks and rate."""
    pyplot = _pyplot()
    settings = list(dict.fromkeys((row["mbit"], row["ranks"]) for row in rows))
    figure, axes = pyplot.subplots(
        1, len(settings), figsize=(5 * len(settings), 4.2), layout="constrained", squeeze=False
    )
    for (mbit, ranks), at in zip(settings, axes[0], strict=True):
        for index, case in enumerate((BASE, SCATTER, BEST)):
            own = [row for row in rows if (row["mbit"], row["ranks"], row["case"]) == (mbit, ranks, case.name)]
            own = sorted(own, key=lambda row: int(row["rows"]))
            xs = [row["rows"] for row in own]
            at.plot(xs, [row["predicted_ms"] for row in own], color=f"C{index}", linestyle="--")
            at.plot(xs, [row["measured_ms"] for row in own], "o", color=f"C{index}", label=case.name)
        at.set(title=f"{ranks} ranks, {mbit} Mbit/s (emulated)", xlabel="rows a step", xscale="log", yscale="log")
        at.set_ylabel("ms in a layer's exchanges (lines: alpha-beta)")
        at.set_xticks(xs, [str(x) for x in xs])
        at.minorticks_off()
        at.grid(alpha=0.3)
        at.legend(fontsize=8)
    return _save(figure, path)


def _bars(axes: Any, series: Mapping[Key, Series]) -> None:
    """Bytes a row in one layer, by purpose, of the largest prefill step."""
    largest = max(each.work.rows for each in series.values() if each.work.phase == "prefill")
    by_case = {s.case.name: s for s in series.values() if s.work.phase == "prefill" and s.work.rows == largest}
    names = [case.name for case in CASES]
    bottom = [0.0] * len(names)
    for purpose in ("reduce", "dispatch", "combine", "gather"):
        heights = [by_case[name].counted.ledger[purpose] / largest / 1000 for name in names]
        axes.bar(range(len(names)), heights, bottom=bottom, label=purpose)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(range(len(names)), [name.replace(", ", ",\n").replace(" + ", "\n+ ") for name in names])
    axes.tick_params(axis="x", labelsize=6)
    axes.set(title=f"prefill {largest}", ylabel="kB a row and layer over the network, all ranks")
    axes.legend(fontsize=7)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    _pyplot().close(figure)
    return path
