"""Route traces: which experts every token of some sequences went to, in one safetensors file.

    token_ids [T] i32 · sequence_start [S+1] i64 (sequence s is rows start[s]:start[s+1]) · phase [T] u8
    expert_ids [L,T,k] i16, in descending weight · optional: expert_weights [L,T,k] f16, router_logits [L,T,E] f16,
    lookahead_logits [L,T,E] f16 (the router of the MoE layer after l applied to the input of l's; zeros for the last)

The file's metadata has one entry, `route_trace`: JSON with schema, fingerprint, num_experts, top_k, layers, and
optionally labels: a name a sequence, such as the domain of its text.
A row's token is the one that went in (-1 where the source does not tell), and its experts are those that computed it.
A file whose name ends in .gz is the same, compressed.
"""

import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from smoe.core.errors import TraceError

SCHEMA = "smoe.route_trace/1"
PREFILL, DECODE = 0, 1
METADATA_ENTRY = "route_trace"

Array = npt.NDArray[Any]

_DTYPES: dict[str, type[np.generic]] = {
    "token_ids": np.int32,
    "sequence_start": np.int64,
    "phase": np.uint8,
    "expert_ids": np.int16,
    "expert_weights": np.float16,
    "router_logits": np.float16,
    "lookahead_logits": np.float16,
}
FIELDS = tuple(_DTYPES)
OPTIONAL = ("expert_weights", "router_logits", "lookahead_logits")
PER_LAYER = ("expert_ids", *OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RouteTrace:
    """`layers[l]` is the decoder layer of index l in the arrays; `fingerprint` names the model's weights.

    Made only by code that keeps the rules above; `validate` checks them all.
    """

    fingerprint: str
    num_experts: int
    top_k: int
    layers: tuple[int, ...]
    token_ids: Array
    sequence_start: Array
    phase: Array
    expert_ids: Array
    expert_weights: Array | None = None
    router_logits: Array | None = None
    lookahead_logits: Array | None = None
    labels: tuple[str, ...] | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        return len(self.sequence_start) - 1

    def validate(self, name: str = "route trace") -> None:
        """Raises TraceError naming `name`, the first offending position and its value."""
        tokens, layers = self.num_tokens, len(self.layers)
        shapes = {
            "token_ids": (tokens,),
            "phase": (tokens,),
            "expert_ids": (layers, tokens, self.top_k),
            "expert_weights": (layers, tokens, self.top_k),
            "router_logits": (layers, tokens, self.num_experts),
            "lookahead_logits": (layers, tokens, self.num_experts),
        }
        for field, dtype in _DTYPES.items():
            array = getattr(self, field)
            if array is None:
                continue
            if array.dtype != dtype:
                raise TraceError(f"{name}: {field}: dtype {array.dtype} (expected {np.dtype(dtype)})")
            if field in shapes and array.shape != shapes[field]:
                raise TraceError(f"{name}: {field}: shape {list(array.shape)} (expected {list(shapes[field])})")
        if not 1 <= self.top_k <= self.num_experts:
            raise TraceError(f"{name}: top_k: {self.top_k} (1 to num_experts = {self.num_experts})")
        self._check_starts(name)
        if self.labels is not None and len(self.labels) != self.num_sequences:
            raise TraceError(f"{name}: labels: {len(self.labels)} (one for each of {self.num_sequences} sequences)")
        _check(name, "token_ids", self.token_ids, self.token_ids < -1, "0 or above, -1 unknown")
        _check(name, "phase", self.phase, self.phase > DECODE, f"{PREFILL} prefill or {DECODE} decode")
        ids = self.expert_ids
        _check(name, "expert_ids", ids, (ids < 0) | (ids >= self.num_experts), f"0 to {self.num_experts - 1}")
        ordered = np.sort(ids, axis=-1)
        _check(name, "expert_ids", ids, np.any(ordered[..., 1:] == ordered[..., :-1], -1), "distinct experts in a row")
        weights = self.expert_weights
        if weights is not None:
            _check(name, "expert_weights", weights, ~np.isfinite(weights), "finite")
            _check(name, "expert_weights", weights, np.any(weights[..., 1:] > weights[..., :-1], -1), "descending")
        for field in ("router_logits", "lookahead_logits"):
            logits = getattr(self, field)
            if logits is not None:
                _check(name, field, logits, np.isnan(logits), "not NaN")

    def _check_starts(self, name: str) -> None:
        start = self.sequence_start
        if start.ndim != 1 or len(start) == 0 or start[0] != 0:
            raise TraceError(f"{name}: sequence_start: {start[:4].tolist()} (a vector that begins with 0)")
        not_above = np.append(False, start[1:] <= start[:-1])
        _check(name, "sequence_start", start, not_above, "ascending: no sequence is empty")
        if start[-1] != self.num_tokens:
            raise TraceError(f"{name}: sequence_start: ends with {start[-1]} (the {self.num_tokens} tokens)")


def write_route_trace(path: str | Path, trace: RouteTrace) -> None:
    """Raises TraceError, before anything is written, for a trace that breaks the format."""
    trace.validate(str(path))
    arrays = {field: getattr(trace, field) for field in _DTYPES if getattr(trace, field) is not None}
    contiguous = {field: np.ascontiguousarray(array) for field, array in arrays.items()}
    content = save(contiguous, metadata={METADATA_ENTRY: header_json(trace)})
    # Without a time stamp, equal traces are equal files.
    Path(path).write_bytes(gzip.compress(content, 9, mtime=0) if str(path).endswith(".gz") else content)


def header_json(trace: RouteTrace) -> str:
    """The metadata entry of a file with this trace, or of a longer one of the same kind and with its labels."""
    header: dict[str, Any] = {
        "schema": SCHEMA,
        "fingerprint": trace.fingerprint,
        "num_experts": trace.num_experts,
        "top_k": trace.top_k,
        "layers": list(trace.layers),
    }
    if trace.labels is not None:
        header["labels"] = list(trace.labels)
    return json.dumps(header, sort_keys=True)


def read_route_trace(path: str | Path) -> RouteTrace:
    """Raises TraceError for a file that is not a whole, valid trace; it names file, position and value."""
    name = str(path)
    try:
        content = Path(path).read_bytes()
        if name.endswith(".gz"):
            content = gzip.decompress(content)
        arrays = load(content)
    except (OSError, EOFError, zlib.error, SafetensorError) as error:
        raise TraceError(f"{name}: {error}") from error
    header = parse_header(name, _metadata(content).get(METADATA_ENTRY))
    unknown, missing = arrays.keys() - _DTYPES.keys(), _DTYPES.keys() - arrays.keys() - set(OPTIONAL)
    if unknown or missing:
        raise TraceError(f"{name}: tensors missing: {sorted(missing)}, unknown: {sorted(unknown)}")
    trace = RouteTrace(**header, **arrays)
    trace.validate(name)
    return trace


def _metadata(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file that `load` has accepted: eight bytes of length, then JSON."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]).get("__metadata__") or {}


def parse_header(name: str, text: str | None) -> dict[str, Any]:
    """The fields of a RouteTrace that are no arrays. Raises TraceError."""
    if text is None:
        raise TraceError(f"{name}: no route trace: the metadata has no entry {METADATA_ENTRY!r}")
    try:
        header = json.loads(text)
        schema = header.pop("schema")
        if schema != SCHEMA:
            raise TraceError(f"{name}: schema: {schema!r} (expected {SCHEMA!r})")
        labels = header.pop("labels", None)
        parsed: dict[str, Any] = {
            "fingerprint": str(header.pop("fingerprint")),
            "num_experts": int(header.pop("num_experts")),
            "top_k": int(header.pop("top_k")),
            "layers": tuple(int(layer) for layer in header.pop("layers")),
            "labels": None if labels is None else tuple(str(label) for label in labels),
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{name}: header: {text[:80]!r} ({type(error).__name__}: {error})") from error
    if header:
        raise TraceError(f"{name}: header: unknown entries {sorted(header)}")
    return parsed


def _check(name: str, field: str, array: Array, wrong: Array, limit: str) -> None:
    """TraceError at the first place where `wrong`; its axes are the first ones of `array`."""
    if wrong.any():
        at = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
        raise TraceError(f"{name}: {field}{list(at)}: {array[at].tolist()} ({limit})")
