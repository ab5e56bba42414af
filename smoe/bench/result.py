"""The result file of a benchmark: figures with their goals and bounds, and everything needed to judge them."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from smoe.bench import environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One named figure. `goal` is in words, `met` is None when there is none; `bound` says what limits it. `spread` is
    from the lowest to the highest of several runs."""

    figure: str
    value: float | None
    unit: str
    goal: str | None = None
    met: bool | None = None
    bound: str | None = None
    spread: tuple[float, float] | None = None

    def plain(self) -> dict[str, object]:
        """As it is written; without a spread where there is none."""
        return {key: value for key, value in asdict(self).items() if key != "spread" or value is not None}


@dataclass(slots=True)
class Result:
    """Collects while a benchmark runs; `write` makes `<folder>/<name>.json`."""

    name: str
    config: dict[str, object]
    samples: dict[str, object] = field(default_factory=dict)
    summary: list[Figure] = field(default_factory=list)
    environment: dict[str, object] = field(default_factory=environment.describe)
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))

    def add(self, figure: Figure) -> None:
        self.summary.append(figure)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        body = {
            "benchmark": self.name,
            "started": self.started,
            **self.environment,
            "config": self.config,
            "summary": [figure.plain() for figure in self.summary],
            "samples": self.samples,
        }
        path.write_text(json.dumps(body, indent=1) + "\n")
        return path


def print_figures(figures: Sequence[Figure], title: str) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("figure", "value", "goal", "met", "bound"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for f in figures:
        value = "not measured" if f.value is None else f"{f.value:,.4g} {f.unit}"
        if f.spread is not None:
            value += f" ({f.spread[0]:,.4g} to {f.spread[1]:,.4g})"
        table.add_row(f.figure, value, f.goal or "", {True: "yes", False: "NO", None: ""}[f.met], f.bound or "")
    Console().print(table)
