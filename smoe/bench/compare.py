"""`smoe bench compare`: the figures of two result files side by side."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smoe.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Value:
    """`low` and `high` are those of several runs, or the value itself."""

    value: float
    low: float
    high: float
    unit: str

    @property
    def spread(self) -> bool:
        return self.low < self.high


@dataclass(frozen=True, slots=True)
class Row:
    figure: str
    before: Value
    after: Value

    @property
    def ratio(self) -> float | None:
        return self.after.value / self.before.value if self.before.value else None

    @property
    def ratio_spread(self) -> tuple[float, float] | None:
        """From the worst case of one against the best of the other, to the other way round."""
        if not (self.before.spread or self.after.spread) or not (self.before.low and self.before.high):
            return None
        ends = [a / b for a in (self.after.low, self.after.high) for b in (self.before.low, self.before.high)]
        return min(ends), max(ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`only_before`, `only_after`: figures that the other file lacks or has not measured. `settings` that differ:
    path, before, after."""

    rows: tuple[Row, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    settings: tuple[tuple[str, object, object], ...]


def compare(before: Path, after: Path) -> Comparison:
    """Of files as `smoe bench` writes them, or flat ones as vLLM's benchmarks do. Raises ConfigError."""
    one, other = _read(before), _read(after)
    first, second = _figures(one), _figures(other)
    rows = tuple(Row(name, value, second[name]) for name, value in first.items() if name in second)
    if not rows:
        raise ConfigError("figures", f"{before} and {after}", "result files with a figure in common")
    return Comparison(
        rows=rows,
        only_before=tuple(name for name in first if name not in second),
        only_after=tuple(name for name in second if name not in first),
        settings=tuple(_differences(one, other)),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("result", str(path), f"a readable file: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError("result", str(path), f"JSON: {error}") from error
    if not isinstance(body, dict):
        raise ConfigError("result", str(path), "a JSON object, as a benchmark writes it")
    return body


def _figures(body: Mapping[str, Any]) -> dict[str, Value]:
    if not isinstance(body.get("summary"), list):
        flat = {name: value for name, value in body.items() if type(value) in (int, float)}
        return {name: Value(value, value, value, "") for name, value in flat.items()}
    found = {}
    for figure in body["summary"]:
        value = figure.get("value")
        if value is not None:
            low, high = figure.get("spread") or (value, value)
            found[figure["figure"]] = Value(value, low, high, figure.get("unit", ""))
    return found


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, object, object]]:
    for part in ("hardware", "versions", "config"):
        one, other = before.get(part) or {}, after.get(part) or {}
        for name in sorted({*one, *other}):
            if one.get(name) != other.get(name):
                yield f"{part}.{name}", one.get(name), other.get(name)
    if before.get("commit") != after.get("commit"):
        yield "commit", before.get("commit"), after.get("commit")
