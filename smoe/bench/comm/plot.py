"""Throughput and bytes by case, and the cost of a layer's exchanges against the alpha-beta model, as pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smoe.bench.comm.cases import BASE, BEST, CASES, SCATTER
from smoe.bench.comm.measure import Key, Series


def plot_speed(series: Mapping[Key, Series], hosts: int, path: Path) -> Path:
    """One panel for each rate and phase: tokens/s over rows a step, with the spread; and one of bytes a token."""
    pyplot = _pyplot()
    own = {key: each for key, each in series.items() if key[1] == hosts}
    panels = list(dict.fromkeys((key[0], each.work.phase) for key, each in own.items()))
    figure, axes = pyplot.subplots(1, len(panels) + 1, figsize=(4.6 * (len(panels) + 1), 4.4), layout="constrained")
    for (mbit, phase), at in zip(panels, axes, strict=False):
        for index, case in enumerate(CASES):
            found = [s for key, s in own.items() if key[0] == mbit and s.work.phase == phase and s.case == case]
            if not found:
                continue
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
    """Measured points and predicted lines: over the tokens of a step, by ranks and rate, and over ranks."""
    pyplot = _pyplot()
    settings = list(dict.fromkeys((row["mbit"], row["ranks"]) for row in rows if row["ranks"] > 1))
    panels = len(settings) + 1
    figure, axes = pyplot.subplots(1, panels, figsize=(4.6 * panels, 4.2), layout="constrained")
    for (mbit, ranks), at in zip(settings, axes, strict=False):
        _lines(at, [row for row in rows if (row["mbit"], row["ranks"]) == (mbit, ranks)], "rows")
        at.set(title=f"{ranks} ranks, {mbit} Mbit/s (emulated)", xlabel="rows a step", xscale="log", yscale="log")
    mbit, largest = min(settings)[0], max(row["rows"] for row in rows if row["ranks"] == 1)
    own = [row for row in rows if row["mbit"] == mbit and row["rows"] == largest and row["phase"] == "prefill"]
    _lines(axes[-1], own, "ranks")
    axes[-1].set(title=f"prefill {largest}, {mbit} Mbit/s (emulated)", xlabel="ranks")
    axes[0].set_ylabel("ms in a layer's exchanges (lines: alpha-beta)")
    return _save(figure, path)


def _lines(axes: Any, rows: Sequence[Mapping[str, Any]], over: str) -> None:
    ticks = sorted({row[over] for row in rows})
    for index, case in enumerate((BASE, SCATTER, BEST)):
        own = sorted((row for row in rows if row["case"] == case.name), key=lambda row: int(row[over]))
        xs = [row[over] for row in own]
        axes.plot(xs, [row["predicted_ms"] for row in own], color=f"C{index}", linestyle="--")
        axes.plot(xs, [row["measured_ms"] for row in own], "o", color=f"C{index}", label=case.name)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _bars(axes: Any, series: Mapping[Key, Series]) -> None:
    """Bytes a row in one layer, by purpose, of the largest prefill step."""
    largest = max(each.work.rows for each in series.values() if each.work.phase == "prefill")
    by_case = {s.case.name: s for s in series.values() if s.work.phase == "prefill" and s.work.rows == largest}
    names = [case.name for case in CASES if case.name in by_case]
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
