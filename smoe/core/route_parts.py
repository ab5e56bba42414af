"""A route trace recorded in parts: a folder of trace files whose labels are request ids, joined into one in the end."""

import gzip
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from smoe.core.errors import TraceError
from smoe.core.route_trace import (
    FIELDS,
    METADATA_ENTRY,
    PER_LAYER,
    Array,
    RouteTrace,
    header_json,
    parse_header,
    read_route_trace,
    write_route_trace,
)

_CODES = {"int64": "I64", "int32": "I32", "int16": "I16", "uint8": "U8", "float16": "F16"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a recorded sequence is: the `index`th of the trace file `part`, `rows` tokens long."""

    part: Path
    index: int
    rows: int


def write_part(folder: Path, trace: RouteTrace) -> None:
    """A new file in the folder, there whole or not at all. Raises TraceError as `write_route_trace` does."""
    number = 1 + max((int(path.stem) for path in _parts(folder)), default=-1)
    path = folder / f"{number:06d}.safetensors"
    unfinished = path.with_suffix(".tmp")
    write_route_trace(unfinished, trace)
    os.replace(unfinished, path)


def find_sequences(folder: Path) -> dict[str, list[Place]]:
    """The places of every label in the parts, oldest first. Raises TraceError for a file that is no trace."""
    found: dict[str, list[Place]] = {}
    for path in _parts(folder):
        try:
            with safe_open(path, framework="numpy") as file:
                labels = parse_header(str(path), (file.metadata() or {}).get(METADATA_ENTRY))["labels"] or ()
                rows = np.diff(file.get_tensor("sequence_start"))
        except (OSError, SafetensorError) as error:
            raise TraceError(f"{path}: {error}") from error
        for index, (label, count) in enumerate(zip(labels, rows, strict=True)):
            found.setdefault(label, []).append(Place(path, index, int(count)))
    return found


def join_parts(out: Path, places: Sequence[Place], labels: tuple[str, ...]) -> None:
    """One trace of these sequences in this order, under these labels; at least one. The file appears whole.

    Holds one part in memory at a time. Raises TraceError for a part that breaks the format.
    """
    lengths = [place.rows for place in places]
    starts = np.cumsum([0, *lengths], dtype=np.int64)
    of_part: dict[Path, list[int]] = {}
    for position, place in enumerate(places):
        of_part.setdefault(place.part, []).append(position)
    unfinished = out.with_name(out.name + ".tmp")
    arrays: dict[str, Array] = {}
    for path, positions in of_part.items():
        part = read_route_trace(path)
        if not arrays:
            arrays = _lay_out(unfinished, part, labels, int(starts[-1]))
            arrays["sequence_start"][:] = starts
        for position in positions:
            first = int(part.sequence_start[places[position].index])
            source, target = slice(first, first + lengths[position]), slice(*starts[position : position + 2])
            for field, array in arrays.items():
                if field in PER_LAYER:
                    array[:, target] = getattr(part, field)[:, source]
                elif field != "sequence_start":
                    array[target] = getattr(part, field)[source]
    arrays.clear()
    if out.name.endswith(".gz"):
        plain, unfinished = unfinished, out.with_name(out.name + ".gz.tmp")
        with (
            plain.open("rb") as content,
            unfinished.open("wb") as file,
            gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=file, mtime=0) as packed,
        ):
            shutil.copyfileobj(content, packed, 2**20)
        plain.unlink()
    os.replace(unfinished, out)


def _lay_out(path: Path, part: RouteTrace, labels: tuple[str, ...], tokens: int) -> dict[str, Array]:
    """A safetensors file for the fields that `part` has, as arrays on disk still to be filled."""
    header: dict[str, object] = {"__metadata__": {METADATA_ENTRY: header_json(replace(part, labels=labels))}}
    shapes: dict[str, tuple[np.dtype[np.generic], tuple[int, ...], int]] = {}
    end = 0
    fields = [field for field in FIELDS if getattr(part, field) is not None]
    # Widest items first, so that all are aligned.
    for field in sorted(fields, key=lambda name: -getattr(part, name).dtype.itemsize):
        array: Array = getattr(part, field)
        if field == "sequence_start":
            shape: tuple[int, ...] = (len(labels) + 1,)
        elif field in PER_LAYER:
            shape = (array.shape[0], tokens, array.shape[2])
        else:
            shape = (tokens,)
        begin, end = end, end + array.dtype.itemsize * int(np.prod(shape))
        header[field] = {"dtype": _CODES[array.dtype.name], "shape": list(shape), "data_offsets": [begin, end]}
        shapes[field] = (array.dtype, shape, begin)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return {
        field: np.memmap(path, dtype=dtype, mode="r+", offset=8 + len(text) + begin, shape=shape)
        for field, (dtype, shape, begin) in shapes.items()
    }


def _parts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.safetensors") if path.stem.isdigit())
