"""Placement folders: `placement.json` and, where tokens were placed too, `tables.safetensors`.

placement.json is a JSON object:

    schema, fingerprint, num_experts, layers [L] · slots_of_device [G] · expert_device [L, E]: the first device of each
    physical_to_logical [L, P] · logical_to_physical [L, E, R], -1 behind the last copy · logical_count [L, E]  (EPLB's)
    tables: null, or {bytes, sha256, vocab_size} of tables.safetensors
    report: an object that is not looked into: how the placement was made, and what it was judged to be worth

It is written last and names the tables by their hash: a folder with a whole placement.json is a whole placement.
Equal placements with equal reports make equal bytes. Other files in the folder are left alone.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from smoe.core.errors import PlacementError
from smoe.core.folder import check_new_folder, write_folder
from smoe.core.placement import SCHEMA, TABLES, Array, Placement, RoutingTables
from smoe.core.placement_maps import expert2slots

PLACEMENT_NAME, TABLES_NAME = "placement.json", "tables.safetensors"
_TABLES_META = {"schema": SCHEMA}
_ARRAYS = ("expert_device", "physical_to_logical", "logical_to_physical", "logical_count")
_FIELDS = {"schema", "fingerprint", "num_experts", "layers", "slots_of_device", *_ARRAYS, "tables", "report"}


def check_placement_folder(folder: str | Path, *, replace: bool = False) -> None:
    """Raises ConfigError if `write_placement` would refuse to make this folder."""
    check_new_folder("out", Path(folder), PLACEMENT_NAME, replace=replace)


def write_placement(
    folder: str | Path,
    placement: Placement,
    *,
    report: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
    replace: bool = False,
) -> None:
    """Makes the folder, all at once; `files` go in as they are, under their names.

    An existing folder is refused or, with `replace`, replaced if it is a placement's. Raises PlacementError for a
    placement that breaks its rules and ConfigError for the folder, before anything is written.
    """
    placement.validate(str(folder))
    others = dict(files or {})
    for name in others:
        if name in (PLACEMENT_NAME, TABLES_NAME):
            raise PlacementError(f"{folder}: files: {name} (another name than the placement's own)")
    header: dict[str, Any] | None = None
    if placement.tables is not None:
        arrays = {field: np.ascontiguousarray(getattr(placement.tables, field)) for field in TABLES}
        content = save(arrays, metadata=_TABLES_META)
        others[TABLES_NAME] = content
        header = _describe(content) | {"vocab_size": placement.tables.vocab_size}
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "fingerprint": placement.fingerprint,
        "num_experts": placement.num_experts,
        "layers": list(placement.layers),
        "slots_of_device": list(placement.slots_of_device),
        **{field: array.tolist() for field, array in _maps(placement).items()},
        "tables": header,
        "report": dict(report or {}),
    }
    try:
        text = ",\n".join(f" {json.dumps(key)}: {_lines(value)}" for key, value in fields.items())
    except (TypeError, ValueError) as error:
        raise PlacementError(f"{folder}: report: {error} (what JSON can say)") from error
    others[PLACEMENT_NAME] = f"{{\n{text}\n}}\n".encode()
    write_folder("out", Path(folder), others, PLACEMENT_NAME, replace=replace)


def read_placement(folder: str | Path, *, fingerprint: str | None = None) -> Placement:
    """Raises PlacementError for a folder that is not a whole, valid placement, of the model `fingerprint` if given."""
    path = Path(folder) / PLACEMENT_NAME
    fields = _read_fields(path)
    header = fields["tables"]
    placement = Placement(
        fingerprint=fields["fingerprint"],
        num_experts=fields["num_experts"],
        layers=tuple(fields["layers"]),
        slots_of_device=tuple(fields["slots_of_device"]),
        slot2expert=fields["physical_to_logical"].astype(np.int32),
        tables=None if header is None else _read_tables(Path(folder) / TABLES_NAME, header),
    )
    placement.validate(str(folder))
    if fingerprint is not None and placement.fingerprint != fingerprint:
        raise PlacementError(f"{path}: fingerprint: {placement.fingerprint!r} (the model's is {fingerprint!r})")
    for field, array in _maps(placement).items():
        if not np.array_equal(fields[field], array):
            raise PlacementError(f"{path}: {field}: not what physical_to_logical and slots_of_device make of it")
    return placement


def read_report(folder: str | Path) -> dict[str, Any]:
    """The report as it was written. Raises PlacementError as `read_placement` does for placement.json."""
    report: dict[str, Any] = _read_fields(Path(folder) / PLACEMENT_NAME)["report"]
    return report


def _maps(placement: Placement) -> dict[str, Array]:
    slots, count = expert2slots(placement)
    return dict(zip(_ARRAYS, (placement.expert2device, placement.slot2expert, slots, count), strict=True))


def _lines(value: Any) -> str:
    """JSON with one line for each layer of a map, and the report spread out for reading."""
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True, allow_nan=False, indent=1).replace("\n", "\n ")
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "[\n" + ",\n".join(f"  {json.dumps(row, separators=(',', ':'))}" for row in value) + "\n ]"
    return json.dumps(value)


def _describe(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _read_fields(path: Path) -> dict[str, Any]:
    try:
        fields: Any = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise PlacementError(f"{path.parent}: no placement: it has no {path.name}") from error
    except OSError as error:
        raise PlacementError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PlacementError(f"{path}: broken JSON: {error}") from error
    schema = fields.get("schema") if isinstance(fields, dict) else None
    if schema != SCHEMA:
        raise PlacementError(f"{path}: schema: {schema!r} (expected {SCHEMA!r})")
    if fields.keys() != _FIELDS:
        missing, unknown = sorted(_FIELDS - fields.keys()), sorted(fields.keys() - _FIELDS)
        raise PlacementError(f"{path}: fields missing: {missing}, unknown: {unknown}")
    if not isinstance(fields["fingerprint"], str):
        raise PlacementError(f"{path}: fingerprint: {fields['fingerprint']!r} (text)")
    if not isinstance(fields["report"], dict):
        raise PlacementError(f"{path}: report: {fields['report']!r:.80} (an object)")
    fields["num_experts"] = int(_integers(path, "num_experts", fields["num_experts"], 0))
    for name, axes in {
        "layers": 1,
        "slots_of_device": 1,
        **dict.fromkeys(_ARRAYS, 2),
        "logical_to_physical": 3,
    }.items():
        array = _integers(path, name, fields[name], axes)
        fields[name] = array.tolist() if axes == 1 else array
    checked: dict[str, Any] = fields
    return checked


def _integers(path: Path, field: str, value: Any, axes: int) -> Array:
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(0)
    limit = np.iinfo(np.int32)
    if array.ndim != axes or array.dtype != np.int64 or ((array < limit.min) | (array > limit.max)).any():
        shape = "an integer" if axes == 0 else f"integers in {axes} even axes"
        raise PlacementError(f"{path}: {field}: {value!r:.80} ({shape})")
    return array


def _read_tables(path: Path, header: Any) -> RoutingTables:
    if not isinstance(header, dict) or header.keys() != {"bytes", "sha256", "vocab_size"}:
        raise PlacementError(
            f"{path.parent / PLACEMENT_NAME}: tables: {header!r:.80} (null, or bytes, sha256, vocab_size)"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PlacementError(f"{path}: {error.strerror}") from error
    for field, found in _describe(content).items():
        if found != header[field]:
            raise PlacementError(f"{path}: {field}: {found} ({PLACEMENT_NAME} says {header[field]})")
    try:
        arrays = load(content)
    except SafetensorError as error:
        raise PlacementError(f"{path}: {error}") from error
    if arrays.keys() != TABLES.keys():
        missing, unknown = sorted(TABLES.keys() - arrays.keys()), sorted(arrays.keys() - TABLES.keys())
        raise PlacementError(f"{path}: tensors missing: {missing}, unknown: {unknown}")
    tables = RoutingTables(**arrays)
    if tables.token_device.ndim != 2 or tables.vocab_size != header["vocab_size"]:
        shape = list(tables.token_device.shape)
        raise PlacementError(f"{path}: token_device: shape {shape} (tables of {header['vocab_size']} token ids)")
    return tables
