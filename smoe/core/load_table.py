"""Load tables: how often each expert was chosen, without which tokens chose it. Enough to balance load, no more.

A .csv file has the columns layer_id, expert_id, count and a line for every expert of every layer, 0 where it was not
chosen. An .npz file has arrays of counts [L, E] under names such as `<model>__load_<domain>`.
"""

import csv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smoe.core.errors import ConfigError, TraceError
from smoe.core.route_trace import Array

COLUMNS = ("layer_id", "expert_id", "count")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadTable:
    """`load` [L, E] i64; `layers[l]` is the decoder layer of row l."""

    layers: tuple[int, ...]
    load: Array

    @property
    def num_experts(self) -> int:
        return int(self.load.shape[1])


def read_load_table(path: str | Path, name: str | None = None) -> LoadTable:
    """`name` chooses the array of an .npz file. Raises TraceError naming file, line and value, ConfigError for it."""
    if str(path).endswith(".npz"):
        return _from_npz(path, name)
    if name is not None:
        raise ConfigError("load_name", name, f"has no effect on {path}: only an .npz file holds several tables")
    return _from_csv(path)


def _from_npz(path: str | Path, name: str | None) -> LoadTable:
    try:
        with np.load(path, allow_pickle=False) as file:
            known = [key for key in file.files if "load" in key]
            if name not in known:
                raise ConfigError("load_name", name, f"one of {', '.join(known)}" if known else f"no table in {path}")
            load = file[name]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, ConfigError):
            raise
        raise TraceError(f"{path}: {error}") from error
    if load.ndim != 2 or load.dtype.kind not in "iu" or 0 in load.shape:
        raise TraceError(f"{path}: {name}: {load.dtype} {list(load.shape)} (integers of shape [layers, experts])")
    if (load < 0).any():
        at = [int(i) for i in np.argwhere(load < 0)[0]]
        raise TraceError(f"{path}: {name}{at}: {int(load[tuple(at)])} (0 or above)")
    return LoadTable(layers=tuple(range(len(load))), load=load.astype(np.int64))


def _from_csv(path: str | Path) -> LoadTable:
    counts: dict[tuple[int, int], int] = {}
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            header = next(rows, None)
            if header is None or tuple(column.strip() for column in header) != COLUMNS:
                raise TraceError(f"{path}: line 1: {','.join(header or ())!r} (the columns {','.join(COLUMNS)})")
            for row in rows:
                if row:
                    _take(path, rows.line_num, row, counts)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: {error}") from error
    if not counts:
        raise TraceError(f"{path}: no line of counts")
    layers = sorted({layer for layer, _ in counts})
    num_experts = 1 + max(expert for _, expert in counts)
    load = np.zeros((len(layers), num_experts), dtype=np.int64)
    for index, layer in enumerate(layers):
        for expert in range(num_experts):
            if (layer, expert) not in counts:
                raise TraceError(f"{path}: layer {layer} has no line for expert {expert} (0 where it was not chosen)")
            load[index, expert] = counts[layer, expert]
    return LoadTable(layers=tuple(layers), load=load)


def _take(path: str | Path, line: int, row: list[str], counts: dict[tuple[int, int], int]) -> None:
    try:
        layer, expert, count = (int(field) for field in row)
    except ValueError as error:
        raise TraceError(f"{path}: line {line}: {','.join(row)!r} (three integers)") from error
    if min(layer, expert, count) < 0:
        raise TraceError(f"{path}: line {line}: {','.join(row)!r} (none below 0)")
    if (layer, expert) in counts:
        raise TraceError(f"{path}: line {line}: layer {layer}, expert {expert} (a second time)")
    counts[layer, expert] = count
