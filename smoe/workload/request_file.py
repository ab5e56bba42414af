"""Reads request traces: Azure's CSV and Mooncake's JSONL, plain or gzip-compressed."""

import gzip
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from smoe.core.errors import TraceError
from smoe.workload.request_rows import AZURE_HEADER, MOONCAKE_BLOCK, azure_row, mooncake_row
from smoe.workload.request_trace import FOLDER, Arrival, RequestTrace, packaged_requests

_READERS: dict[str, Callable[[str], Arrival]] = {".csv": azure_row, ".jsonl": mooncake_row}


def open_requests(name: str, *, skip_bad_rows: bool = False) -> RequestTrace:
    """A packaged sample, or the file of that name: `.csv` as Azure publishes them, `.jsonl` as Mooncake does, each
    also with `.gz`. Raises TraceError: file, line and reason; with `skip_bad_rows` they are counted instead."""
    if name in packaged_requests():
        [path] = FOLDER.glob(f"{name}.*.gz")
        return replace(_read(path, skip_bad_rows=skip_bad_rows), name=name)
    if not Path(name).exists():
        known = ", ".join(packaged_requests())
        raise TraceError(f"{name}: no such file (nor one of the packaged request traces {known})")
    return _read(Path(name), skip_bad_rows=skip_bad_rows)


def _read(path: Path, *, skip_bad_rows: bool) -> RequestTrace:
    reader = _READERS.get(Path(path.name.removesuffix(".gz")).suffix)
    if reader is None:
        raise TraceError(f"{path}: a request trace ends in .csv (Azure) or .jsonl (Mooncake), also with .gz")
    rows: list[Arrival] = []
    skipped = 0
    for number, line in _lines(path):
        if reader is azure_row and number == 1:
            if line != AZURE_HEADER:
                raise TraceError(f"{path}: line 1: {line[:60]!r} is not the header {AZURE_HEADER}")
            continue
        try:
            row = reader(line)
            if rows and row.at_s < rows[-1].at_s:
                raise ValueError("earlier than the row before it")
        except ValueError as error:
            if not skip_bad_rows:
                raise TraceError(f"{path}: line {number}: {error}") from None
            skipped += 1
        else:
            rows.append(row)
    if not rows:
        raise TraceError(f"{path}: no requests" + (f", {skipped} malformed rows" if skipped else ""))
    start = rows[0].at_s
    shifted = tuple(replace(row, at_s=row.at_s - start) for row in rows)
    return RequestTrace(name=path.name, rows=shifted, block_tokens=MOONCAKE_BLOCK, skipped=skipped)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered from 1, without those that are empty."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.strip()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error
