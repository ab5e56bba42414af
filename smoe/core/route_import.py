"""Route traces from the .npz files of others. Three layouts are known; which one it is shows in the array names.

    fingerprinting  `ids` [L,T,k], `seq_start`, `token_uid`: decode steps of gpt-oss-20b, slots by descending weight;
                    `dataset` [S] names the sequences, `repetition` [S] flags those that loop;
                    weights file: `weights_u8` [L,T',k] of 255ths for the sequences `seq_index`
    esft            `<task>_ids` [L,T,k], `<task>_seq_start`: prefill of DeepSeek-V2-Lite, slots in no order;
                    weights file: `<task>_weights_e4` [L,T,k] of ten-thousandths, which ranks them; tasks are labels
    bigmoe          `ids` [T,L,k], `weights`, `phase`, `expert_bytes` [L]: one prompt and its answer on a phone

Ids of 255 mean not computed. A token is in the trace only if every layer computed it, or with `incomplete="layers"`
a layer only if it computed every token.
"""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from smoe.core.errors import ConfigError, TraceError
from smoe.core.route_edit import select_sequences, take_rows
from smoe.core.route_trace import DECODE, PREFILL, Array, RouteTrace

NOT_COMPUTED = 255
NOT_COMPUTED_RULES = ("tokens", "layers")
Incomplete = Literal["tokens", "layers"]
Arrays = Mapping[str, Array]

_GPT_OSS = {"layers": 24, "top_k": 4, "num_experts": 32}
_DEEPSEEK = {"layers": 26, "top_k": 6, "num_experts": 64}
_BIGMOE_EXPERTS = 128


def import_routes(
    path: str | Path,
    *,
    weights: str | Path | None = None,
    task: str | None = None,
    datasets: Sequence[str] = (),
    without_repetition: bool = False,
    incomplete: Incomplete = "tokens",
) -> RouteTrace:
    """The whole file; of its sequences only those with weights when `weights` is given and covers a part, only those
    of `datasets` when there are any, and `without_repetition` only those that do not loop.

    Raises TraceError naming file, position and value; ConfigError for an option that does not fit the layout.
    """
    name, arrays = str(path), _load(path)
    beside = None if weights is None else (str(weights), _load(weights))
    tasks = sorted(key.removesuffix("_seq_start") for key in arrays if key.endswith("_seq_start"))
    if task is not None and task not in tasks:
        raise ConfigError("task", task, f"one of {', '.join(tasks)}" if tasks else f"has no effect on {name}")
    fingerprinting = {"ids", "seq_start", "token_uid"} <= arrays.keys()
    for field, value in (("dataset", list(datasets)), ("without_repetition", without_repetition)):
        if value and not fingerprinting:
            raise ConfigError(field, value, f"has no effect on {name}")
    if fingerprinting:
        trace = _fingerprinting(name, arrays, beside)
        trace = _some_sequences(name, arrays, trace, beside, datasets, without_repetition)
    elif tasks:
        if beside is None:
            raise ConfigError("weights", None, f"the weights file that ranks the slots of {name}")
        trace = _esft(name, arrays, beside, tasks if task is None else [task])
    elif {"ids", "weights", "phase", "expert_bytes"} <= arrays.keys():
        if beside is not None:
            raise ConfigError("weights", str(weights), f"has no effect: {name} holds its weights")
        trace = _bigmoe(name, arrays)
    else:
        raise TraceError(f"{name}: no routes of tokens; its arrays are {', '.join(sorted(arrays)[:6])}")
    trace = _complete(name, trace, incomplete)
    trace.validate(name)
    return trace


def _fingerprinting(name: str, arrays: Arrays, beside: tuple[str, Arrays] | None) -> RouteTrace:
    ids, start = arrays["ids"], arrays["seq_start"].astype(np.int64)
    _check_geometry(name, "ids", ids, **_GPT_OSS)
    _check_end(name, "seq_start", start, ids.shape[1])
    token_ids = arrays["token_uid"].astype(np.int32)
    scores: Array | None = None
    if beside is not None:
        other, extra = beside
        chosen, scores = _get(other, extra, "seq_index"), _get(other, extra, "weights_u8")
        if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < len(start) - 1:
            raise TraceError(f"{other}: seq_index: {int(chosen.max())} ({name} has {len(start) - 1} sequences)")
        rows = np.concatenate([np.arange(start[s], start[s + 1]) for s in chosen])
        if scores.shape != (ids.shape[0], len(rows), ids.shape[2]):
            expected = [ids.shape[0], len(rows), ids.shape[2]]
            raise TraceError(f"{other}: weights_u8: shape {list(scores.shape)} (expected {expected})")
        start = np.concatenate([[0], np.cumsum(np.diff(start)[chosen])]).astype(np.int64)
        ids, token_ids, scores = ids[:, rows], token_ids[rows], scores / np.float32(255)
    return _trace("gpt-oss-20b", ids, scores, start, DECODE, range(24), _GPT_OSS["num_experts"], token_ids)


def _some_sequences(
    name: str,
    arrays: Arrays,
    trace: RouteTrace,
    beside: tuple[str, Arrays] | None,
    datasets: Sequence[str],
    without_repetition: bool,
) -> RouteTrace:
    """With their datasets as labels, where the file tells those."""
    of_file = np.arange(len(arrays["seq_start"]) - 1) if beside is None else _get(*beside, "seq_index")
    keep = np.ones(len(of_file), dtype=bool)
    for field in ("dataset", "repetition"):
        if field in arrays and len(arrays[field]) != len(arrays["seq_start"]) - 1:
            raise TraceError(f"{name}: {field}: {len(arrays[field])} (one a sequence)")
    if "dataset" in arrays:
        labels = arrays["dataset"][of_file]
        trace = replace(trace, labels=tuple(map(str, labels)))
        for wanted in datasets:
            if wanted not in labels:
                raise ConfigError("dataset", wanted, f"one of {', '.join(sorted(map(str, set(labels))))}")
        if datasets:
            keep &= np.isin(labels, list(datasets))
    elif datasets:
        _get(name, arrays, "dataset")
    if without_repetition:
        keep &= ~_get(name, arrays, "repetition")[of_file]
    if not keep.any():
        raise TraceError(f"{name}: repetition: no sequence is left of {len(keep)}")
    return trace if keep.all() else select_sequences(trace, np.flatnonzero(keep).tolist())


def _esft(name: str, arrays: Arrays, beside: tuple[str, Arrays], tasks: list[str]) -> RouteTrace:
    other, extra = beside
    ids, scores, lengths = [], [], []
    for task in tasks:
        picked, start = _get(name, arrays, f"{task}_ids"), arrays[f"{task}_seq_start"]
        weights = _get(other, extra, f"{task}_weights_e4")
        _check_geometry(name, f"{task}_ids", picked, **_DEEPSEEK)
        _check_end(name, f"{task}_seq_start", start, picked.shape[1])
        if weights.shape != picked.shape:
            shapes = f"shape {list(weights.shape)} (expected {list(picked.shape)})"
            raise TraceError(f"{other}: {task}_weights_e4: {shapes}")
        ids.append(picked)
        scores.append(weights)
        lengths.append(np.diff(start))
    ranked, weight = _rank(np.concatenate(ids, axis=1), np.concatenate(scores, axis=1) / np.float32(10_000))
    starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    # The decoder's layer 0 is dense.
    trace = _trace("deepseek-v2-lite", ranked, weight, starts, PREFILL, range(1, 27), _DEEPSEEK["num_experts"])
    return replace(trace, labels=tuple(task for task, count in zip(tasks, lengths, strict=True) for _ in count))


def _bigmoe(name: str, arrays: Arrays) -> RouteTrace:
    ids, scores, layers = arrays["ids"], arrays["weights"], len(arrays["expert_bytes"])
    if ids.ndim != 3 or ids.shape[1] != layers:
        raise TraceError(f"{name}: ids: shape {list(ids.shape)} (axis 1: the {layers} layers of expert_bytes)")
    if scores.shape != ids.shape:
        raise TraceError(f"{name}: weights: shape {list(scores.shape)} (expected {list(ids.shape)})")
    if len(arrays["phase"]) != len(ids):
        raise TraceError(f"{name}: phase: {len(arrays['phase'])} tokens (ids have {len(ids)})")
    ranked, weight = _rank(ids.transpose(1, 0, 2), np.nan_to_num(scores.transpose(1, 0, 2)).astype(np.float32))
    start = np.array([0, len(ids)], dtype=np.int64)
    return _trace(Path(name).stem, ranked, weight, start, arrays["phase"], range(layers), _BIGMOE_EXPERTS)


def _trace(
    model: str,
    ids: Array,
    weights: Array | None,
    start: Array,
    phase: int | Array,
    layers: range,
    num_experts: int,
    token_ids: Array | None = None,
) -> RouteTrace:
    tokens = ids.shape[1]
    return RouteTrace(
        fingerprint=f"imported:{model}",
        num_experts=num_experts,
        top_k=ids.shape[2],
        layers=tuple(layers),
        token_ids=np.full(tokens, -1, dtype=np.int32) if token_ids is None else token_ids,
        sequence_start=start,
        phase=np.broadcast_to(np.asarray(phase, dtype=np.uint8), (tokens,)).copy(),
        expert_ids=ids.astype(np.int16),
        expert_weights=None if weights is None else weights.astype(np.float16),
    )


def _complete(name: str, trace: RouteTrace, incomplete: Incomplete) -> RouteTrace:
    """Without what was not computed. A row that was computed in part is an error."""
    absent = trace.expert_ids == NOT_COMPUTED
    if trace.num_experts > NOT_COMPUTED or not absent.any():
        return trace
    partly = absent.any(-1) & ~absent.all(-1)
    if partly.any():
        at = [int(i) for i in np.argwhere(partly)[0]]
        raise TraceError(f"{name}: ids{at}: {trace.expert_ids[tuple(at)].tolist()} (255 in all slots or in none)")
    skipped = absent[..., 0]
    if incomplete == "layers":
        kept = np.flatnonzero(~skipped.any(1))
        if not len(kept):
            raise TraceError(f"{name}: ids: no layer was computed for every token")
        return _keep_layers(trace, kept)
    rows = np.flatnonzero(~skipped.any(0))
    if not len(rows):
        raise TraceError(f"{name}: ids: no token was computed in every layer")
    sequence = np.searchsorted(trace.sequence_start, rows, side="right")
    lengths = np.unique(sequence, return_counts=True)[1]
    return take_rows(trace, rows, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def _keep_layers(trace: RouteTrace, kept: Array) -> RouteTrace:
    return replace(
        trace,
        layers=tuple(trace.layers[int(i)] for i in kept),
        expert_ids=trace.expert_ids[kept],
        expert_weights=None if trace.expert_weights is None else trace.expert_weights[kept],
    )


def _rank(ids: Array, weights: Array) -> tuple[Array, Array]:
    """Both with slots in descending weight; slots of equal weight keep their order."""
    order = np.argsort(-weights, axis=-1, kind="stable")
    return np.take_along_axis(ids, order, -1), np.take_along_axis(weights, order, -1)


def _load(path: str | Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise TraceError(f"{path}: one array (expected an .npz file of several)")
            return {key: file[key] for key in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{path}: {error}") from error


def _get(name: str, arrays: Arrays, field: str) -> Array:
    if field not in arrays:
        raise TraceError(f"{name}: {field}: missing (there are {', '.join(sorted(arrays)[:6])})")
    return arrays[field]


def _check_geometry(name: str, field: str, ids: Array, *, layers: int, top_k: int, num_experts: int) -> None:
    if ids.ndim != 3 or ids.shape[0] != layers or ids.shape[2] != top_k:
        raise TraceError(f"{name}: {field}: shape {list(ids.shape)} ({layers} layers, tokens, top-{top_k})")
    wrong = ((ids < 0) | (ids >= num_experts)) & (ids != NOT_COMPUTED)
    if wrong.any():
        at = [int(i) for i in np.argwhere(wrong)[0]]
        raise TraceError(f"{name}: {field}{at}: {int(ids[tuple(at)])} (0 to {num_experts - 1}, 255 not computed)")


def _check_end(name: str, field: str, start: Array, tokens: int) -> None:
    if start.ndim != 1 or not len(start) or start[-1] != tokens:
        last = int(start[-1]) if start.ndim == 1 and len(start) else None
        raise TraceError(f"{name}: {field}[{len(start) - 1}]: {last} (the {tokens} tokens of the file)")
