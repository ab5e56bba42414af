"""Route traces from one .npy array of expert ids, as ExFlow's solver reads: [tokens, layers] or [tokens, layers, k]."""

from pathlib import Path

import numpy as np

from smoe.core.errors import ConfigError, TraceError
from smoe.core.route_trace import PREFILL, RouteTrace

_MAX_EXPERTS = 2**15


def import_npy(path: str | Path, *, num_experts: int, sequence_length: int | None = None) -> RouteTrace:
    """Token ids are unknown, all tokens count as prefill, and layers are numbered from 0.

    The array does not tell where sequences begin: each `sequence_length` rows are taken for one (the last may be
    shorter), or all rows for a single one. Raises TraceError naming file, position and value.
    """
    name = str(path)
    if not 1 <= num_experts <= _MAX_EXPERTS:
        raise ConfigError("num_experts", num_experts, f"1 to {_MAX_EXPERTS}")
    try:
        ids = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise TraceError(f"{name}: {error}") from error
    if not isinstance(ids, np.ndarray) or ids.ndim not in (2, 3) or ids.dtype.kind not in "iu":
        found = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, np.ndarray) else "several arrays"
        raise TraceError(f"{name}: {found} (integers of shape [tokens, layers] or [tokens, layers, k])")
    if 0 in ids.shape:
        raise TraceError(f"{name}: shape {list(ids.shape)} (a token, a layer and an expert at least)")
    wrong = (ids < 0) | (ids >= num_experts)
    if wrong.any():
        at = [int(i) for i in np.argwhere(wrong)[0]]
        raise TraceError(f"{name}: {at}: {int(ids[tuple(at)])} (0 to {num_experts - 1})")
    tokens = len(ids)
    picked = ids[..., None] if ids.ndim == 2 else ids
    starts = np.arange(0, tokens, sequence_length or tokens, dtype=np.int64)
    trace = RouteTrace(
        fingerprint=f"imported:{Path(path).stem}",
        num_experts=num_experts,
        top_k=picked.shape[2],
        layers=tuple(range(picked.shape[1])),
        token_ids=np.full(tokens, -1, dtype=np.int32),
        sequence_start=np.append(starts, tokens),
        phase=np.full(tokens, PREFILL, dtype=np.uint8),
        expert_ids=np.ascontiguousarray(picked.transpose(1, 0, 2)).astype(np.int16),
    )
    trace.validate(name)
    return trace
