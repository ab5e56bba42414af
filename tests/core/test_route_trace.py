import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from smoe.core.errors import TraceError
from smoe.core.route_summary import summarize
from smoe.core.route_trace import RouteTrace, read_route_trace, write_route_trace

LAYERS, TOKENS, TOP_K, EXPERTS = 3, 7, 2, 5


def make(**changes: Any) -> RouteTrace:
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(EXPERTS)[:TOP_K] for _ in range(LAYERS * TOKENS)])
    trace = RouteTrace(
        fingerprint="abc",
        num_experts=EXPERTS,
        top_k=TOP_K,
        layers=(0, 2, 5),
        token_ids=np.arange(TOKENS, dtype=np.int32),
        sequence_start=np.array([0, 3, 7], dtype=np.int64),
        phase=np.array([0, 0, 1, 0, 0, 0, 1], dtype=np.uint8),
        expert_ids=ids.reshape(LAYERS, TOKENS, TOP_K).astype(np.int16),
        expert_weights=np.tile(np.array([0.75, 0.25], dtype=np.float16), (LAYERS, TOKENS, 1)),
        router_logits=rng.normal(size=(LAYERS, TOKENS, EXPERTS)).astype(np.float16),
    )
    return replace(trace, **changes)


def with_value(array: Any, at: Any, value: Any) -> Any:
    copy = array.copy()
    copy[at] = value
    return copy


@pytest.mark.parametrize("dropped", [(), ("expert_weights",), ("router_logits", "expert_weights")])
def test_round_trip(tmp_path: Path, dropped: tuple[str, ...]) -> None:
    trace = make(**dict.fromkeys(dropped))
    path = tmp_path / "trace.safetensors"
    write_route_trace(path, trace)
    found = read_route_trace(path)
    for field in RouteTrace.__dataclass_fields__:
        ours, theirs = getattr(trace, field), getattr(found, field)
        assert (ours is None) == (theirs is None), field
        assert np.array_equal(ours, theirs), field
        assert getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)


BASE = make()
BROKEN = [
    ({"sequence_start": np.array([0, 3, 3, 7])}, r"sequence_start\[2\]: 3 \(ascending"),
    ({"sequence_start": np.array([1, 7])}, r"sequence_start: \[1, 7\] \(a vector that begins with 0"),
    ({"sequence_start": np.array([0, 6])}, r"sequence_start: ends with 6 \(the 7 tokens"),
    ({"phase": with_value(BASE.phase, 4, 2)}, r"phase\[4\]: 2 \(0 prefill or 1 decode"),
    ({"token_ids": with_value(BASE.token_ids, 5, -3)}, r"token_ids\[5\]: -3"),
    ({"expert_ids": with_value(BASE.expert_ids, (1, 2, 0), 5)}, r"expert_ids\[1, 2, 0\]: 5 \(0 to 4"),
    ({"expert_ids": with_value(BASE.expert_ids, (2, 6), 3)}, r"expert_ids\[2, 6\]: \[3, 3\] \(distinct"),
    ({"expert_weights": with_value(BASE.expert_weights, (0, 1, 1), np.inf)}, r"expert_weights\[0, 1, 1\]: inf"),
    ({"expert_weights": with_value(BASE.expert_weights, (0, 1, 1), 0.9)}, r"expert_weights\[0, 1\]: .* \(descending"),
    ({"router_logits": with_value(BASE.router_logits, (1, 1, 4), np.nan)}, r"router_logits\[1, 1, 4\]: nan"),
    ({"expert_ids": BASE.expert_ids[:, 1:]}, r"expert_ids: shape \[3, 6, 2\] \(expected \[3, 7, 2\]"),
    ({"token_ids": BASE.token_ids.astype(np.int64)}, r"token_ids: dtype int64 \(expected int32"),
    ({"top_k": 9}, r"shape \[3, 7, 2\] \(expected \[3, 7, 9\]"),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN)
def test_a_trace_that_breaks_a_rule_is_neither_written_nor_read(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "trace.safetensors"
    with pytest.raises(TraceError, match=message):
        write_route_trace(path, make(**changes))
    assert not path.exists()
    broken = make(**changes)
    fields = ("token_ids", "sequence_start", "phase", "expert_ids", "expert_weights", "router_logits")
    arrays = {field: np.ascontiguousarray(getattr(broken, field)) for field in fields}
    header = {"schema": "smoe.route_trace/1", "fingerprint": "abc", "num_experts": 5, "layers": [0, 2, 5]}
    save_file(arrays, path, metadata={"route_trace": json.dumps(header | {"top_k": broken.top_k})})
    with pytest.raises(TraceError, match=message) as error:
        read_route_trace(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda header: header.update(schema="other/2"), r"schema: 'other/2' \(expected 'smoe.route_trace/1'"),
        (lambda header: header.pop("top_k"), r"header: .*KeyError: 'top_k'"),
        (lambda header: header.update(layers="x"), r"header: "),
        (lambda header: header.update(extra=1), r"header: unknown entries \['extra'\]"),
    ],
)
def test_a_bad_header(tmp_path: Path, edit: Any, message: str) -> None:
    path = tmp_path / "trace.safetensors"
    write_route_trace(path, make())
    header = {"schema": "smoe.route_trace/1", "fingerprint": "a", "num_experts": 5, "top_k": 2, "layers": [0, 2, 5]}
    edit(header)
    save_file(load_file(path), path, metadata={"route_trace": json.dumps(header)})
    with pytest.raises(TraceError, match=message):
        read_route_trace(path)


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    with pytest.raises(TraceError, match=r"trace\.safetensors"):
        read_route_trace(path)
    write_route_trace(path, make())
    whole = path.read_bytes()
    for length in (0, 5, 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(TraceError, match=r"trace\.safetensors"):
            read_route_trace(path)
    save_file({"x": np.zeros(3)}, path)
    with pytest.raises(TraceError, match="no route trace"):
        read_route_trace(path)
    path.write_bytes(whole)
    metadata = {"route_trace": json.dumps({"schema": "smoe.route_trace/1", "fingerprint": "", "num_experts": 5, "top_k": 2, "layers": []})}  # fmt: skip  # noqa: E501
    save_file({"x": np.zeros(3)}, path, metadata=metadata)
    with pytest.raises(TraceError, match=r"missing: \['expert_ids', .*unknown: \['x'\]"):
        read_route_trace(path)


def test_summary() -> None:
    ids = np.array([[[0, 1], [1, 2], [3, 4], [0, 1]]], dtype=np.int16)
    trace = RouteTrace(
        fingerprint="abc",
        num_experts=5,
        top_k=2,
        layers=(4,),
        token_ids=np.zeros(4, dtype=np.int32),
        sequence_start=np.array([0, 3, 4]),
        phase=np.array([0, 1, 1, 0], dtype=np.uint8),
        expert_ids=ids,
    )
    summary = summarize(trace)
    assert json.loads(json.dumps(summary)) == summary
    assert (summary["tokens"], summary["prefill_tokens"], summary["decode_tokens"]) == (4, 2, 2)
    assert (summary["sequences"], summary["longest_sequence"]) == (2, 3)
    # experts 0..4 compute 2, 3, 1, 1, 1 pairs; of the 4 pairs with a predecessor one repeats (expert 1)
    assert summary["layers"] == [{"layer": 4, "experts_used": 5, "load_max_over_mean": 3 / 1.6, "repeat_share": 0.25}]


def test_no_torch_is_imported() -> None:
    code = "import sys, smoe.core.route_trace, smoe.core.route_summary; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
