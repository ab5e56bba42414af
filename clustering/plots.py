"""Pictures of a regrouping, as PNG files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smoe.clustering.compare import Compared, History
from smoe.clustering.evaluate import BOTH, CHAIN, EXPERTS, ORACLE, TOKENS, VANILLA
from smoe.clustering.front import front
from smoe.clustering.quality import TableQuality

_VARIANT_STYLE: dict[str, dict[str, Any]] = {
    ORACLE: {"color": "black", "linestyle": "--"},
    CHAIN: {"color": "C0", "marker": "o"},
    BOTH: {"color": "C1", "marker": "s"},
    TOKENS: {"color": "C2", "marker": "^"},
    EXPERTS: {"color": "C3", "linestyle": ":"},
    VANILLA: {"color": "grey", "linestyle": "--"},
}


def plot_lar_by_layer(path: Path, lar: Mapping[str, Sequence[float]], layers: Sequence[int], title: str) -> Path:
    """A line a variant. `layers` are the decoder's."""
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(8.5, 4.2), layout="constrained")
    for variant, style in _VARIANT_STYLE.items():
        if variant in lar:
            mean = float(np.mean(lar[variant]))
            axis.plot(layers, lar[variant], label=f"{variant}, mean {mean:.3f}", markersize=4, linewidth=1.4, **style)
    axis.set_xticks(list(layers)[:: max(1, len(layers) // 12)])
    axis.set_xlabel("decoder layer")
    axis.set_ylabel("local activations, share")
    axis.set_ylim(0, 1)
    axis.grid(alpha=0.3)
    axis.set_title(title, fontsize=10)
    figure.legend(loc="outside right center", fontsize=8)
    return _save(pyplot, figure, path)


def plot_front(path: Path, rows: Sequence[Compared], title: str, *, measure: str = "lar_token") -> Path:
    """Local share over expert-load imbalance, a line a solver that answers to balance, a mark for others."""
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(8.5, 4.8), layout="constrained")
    solvers = list(dict.fromkeys(row.solver for row in rows))
    for index, solver in enumerate(solvers):
        points = [
            (float(np.mean(row.load_imbalance)), float(np.mean(getattr(row, measure))))
            for row in rows
            if row.solver == solver
        ]
        ours = index == 0
        color, marker = f"C{index % 10}", "osD^vP*Xhp"[index % 10]
        axis.scatter(
            *zip(*points, strict=True), color=color, marker=marker, s=36 if ours else 26, label=solver, zorder=3
        )
        axis.plot(*zip(*front(points), strict=True), color=color, linewidth=2.0 if ours else 1.0)
    axis.set_xlabel("expert-load imbalance, busiest device / mean")
    axis.set_ylabel(_MEASURES[measure])
    axis.grid(alpha=0.3)
    axis.set_title(title, fontsize=10)
    figure.legend(loc="outside right center", fontsize=8)
    return _save(pyplot, figure, path)


_MEASURES = {
    "lar_token": "local activations by table T, share",
    "lar_chain": "local activations by T and A, share",
    "lar_best": "local activations on a token's best device, share",
}


def plot_convergence(path: Path, histories: Mapping[str, Sequence[History]], title: str) -> Path:
    """The local share of the best so far by round, a line a layer, and its mean; a panel a setting."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(
        1, len(histories), figsize=(4.2 * len(histories), 3.8), layout="constrained", sharey=True, squeeze=False
    )
    for axis, (setting, layers) in zip(axes[0], histories.items(), strict=True):
        lines = [[entry[1] for entry in history] for history in layers if history]
        rounds = max((len(line) for line in lines), default=0)
        for line in lines:
            axis.plot(range(1, len(line) + 1), line, color="C0", alpha=0.25, linewidth=0.8)
        if lines:
            held = np.array([line + line[-1:] * (rounds - len(line)) for line in lines])
            axis.plot(range(1, rounds + 1), held.mean(axis=0), color="C3", linewidth=2.0, label="mean of layers")
            axis.legend(fontsize=8)
        axis.set_title(setting, fontsize=9)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_xlabel("round")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("local share of the best so far (fit)")
    figure.suptitle(title, fontsize=10)
    return _save(pyplot, figure, path)


def plot_calibration(path: Path, tables: Mapping[str, TableQuality], title: str) -> Path:
    """What came over what was said; a mark's area is its share of tokens."""
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(6.4, 4.6), layout="constrained")
    axis.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
    for index, (name, quality) in enumerate(tables.items()):
        count, said, come = (np.array(column) for column in zip(*quality.bins, strict=True))
        label = f"{name}, off by {quality.calibration_error:.3f}"
        axis.plot(said, come, color=f"C{index}", linewidth=1.2, label=label)
        axis.scatter(said, come, s=10 + 250 * count / count.sum(), color=f"C{index}", alpha=0.6)
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)
    axis.set_xlabel("local share said")
    axis.set_ylabel("local share come, held-out")
    axis.grid(alpha=0.3)
    axis.set_title(title, fontsize=10)
    axis.legend(fontsize=8)
    return _save(pyplot, figure, path)


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
