"""The traces that the regroup benchmark works on."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from smoe.core.errors import TraceError
from smoe.core.route_trace import DECODE, PREFILL, Array, RouteTrace

DATA = Path("benchmarks/data")
GPT_OSS, DEEPSEEK = "gpt_oss_20b_decode.npz", "deepseek_v2_lite_prefill.npz"
_KINDS = {"gpqa": "gpqa", "mmlu_pro": "mmlu-pro", "mmlu": "mmlu", "sorry": "safety"}


def gpt_oss(folder: Path) -> RouteTrace:
    """Labels are kinds of questions: gpqa, mmlu, mmlu-pro, safety, other."""
    arrays = _arrays(folder / GPT_OSS)
    return RouteTrace(
        fingerprint="imported:gpt-oss-20b",
        num_experts=32,
        top_k=4,
        layers=tuple(range(24)),
        token_ids=arrays["token_uid"].astype(np.int32),
        sequence_start=arrays["seq_start"].astype(np.int64),
        phase=np.full(arrays["ids"].shape[1], DECODE, dtype=np.uint8),
        expert_ids=arrays["ids"].astype(np.int16),
        labels=tuple(_kind(name) for name in arrays["dataset"].tolist()),
    )


def deepseek(folder: Path) -> RouteTrace:
    """Labels are tasks. Token ids are unknown, and a token's experts are in no order."""
    arrays = _arrays(folder / DEEPSEEK)
    tasks = sorted(name.removesuffix("_seq_start") for name in arrays if name.endswith("_seq_start"))
    ids = np.concatenate([arrays[f"{task}_ids"] for task in tasks], axis=1).astype(np.int16)
    lengths = [np.diff(arrays[f"{task}_seq_start"]) for task in tasks]
    return RouteTrace(
        fingerprint="imported:deepseek-v2-lite",
        num_experts=64,
        top_k=6,
        layers=tuple(range(1, 27)),
        token_ids=np.full(ids.shape[1], -1, dtype=np.int32),
        sequence_start=np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64),
        phase=np.full(ids.shape[1], PREFILL, dtype=np.uint8),
        expert_ids=ids,
        labels=tuple(task for task, each in zip(tasks, lengths, strict=True) for _ in each),
    )


def only_layers(trace: RouteTrace, indices: Array) -> RouteTrace:
    layers = tuple(trace.layers[i] for i in indices.tolist())
    return replace(trace, layers=layers, expert_ids=np.ascontiguousarray(trace.expert_ids[indices]))


def _kind(dataset: str) -> str:
    return next((kind for prefix, kind in _KINDS.items() if dataset.startswith(prefix)), "other")


def _arrays(path: Path) -> dict[str, Array]:
    if not path.exists():
        raise TraceError(f"{path}: no such file (run from the repository's root, or name its folder)")
    with np.load(path, allow_pickle=False) as loaded:
        return {name: loaded[name] for name in loaded.files}
