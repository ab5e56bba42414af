from pathlib import Path

import numpy as np
import pytest

from smoe.core.errors import TraceError
from smoe.core.route_edit import merge, select_sequences, split
from smoe.core.route_parts import find_sequences, join_parts, write_part
from smoe.core.route_trace import RouteTrace, read_route_trace, write_route_trace

RNG = np.random.default_rng(5)


def trace(lengths: list[int], labels: tuple[str, ...] | None, *, logits: bool = False) -> RouteTrace:
    tokens = sum(lengths)
    weights = np.sort(RNG.random((3, tokens, 2)).astype(np.float16), axis=-1)[..., ::-1]
    return RouteTrace(
        fingerprint="f",
        num_experts=6,
        top_k=2,
        layers=(1, 2, 4),
        token_ids=RNG.integers(0, 99, tokens).astype(np.int32),
        sequence_start=np.cumsum([0, *lengths], dtype=np.int64),
        phase=RNG.integers(0, 2, tokens).astype(np.uint8),
        expert_ids=RNG.random((3, tokens, 6)).argsort(-1)[..., :2].astype(np.int16),
        expert_weights=weights,
        router_logits=RNG.random((3, tokens, 6)).astype(np.float16) if logits else None,
        labels=labels,
    )


@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("name", ["out.safetensors", "out.safetensors.gz"])
def test_parts_join_into_the_trace_that_merging_and_selecting_gives(tmp_path: Path, name: str, logits: bool) -> None:
    parts = [
        trace([3, 1], ("b", "a"), logits=logits),
        trace([2], ("c",), logits=logits),
        trace([5, 4], ("d", "b"), logits=logits),
    ]
    for part in parts:
        write_part(tmp_path, part)
    found = find_sequences(tmp_path)
    assert {label: [place.rows for place in places] for label, places in found.items()} == {
        "b": [3, 4],
        "a": [1],
        "c": [2],
        "d": [5],
    }
    out, expected = tmp_path / name, tmp_path / f"expected-{name}"
    join_parts(out, [found["c"][0], found["b"][1], found["a"][0]], ("x", "y", "z"))
    whole = merge(parts, ["p", "q", "r"])
    chosen = select_sequences(whole, [2, 4, 1])
    assert chosen.labels == ("c", "b", "a")
    joined = read_route_trace(out)
    assert joined.labels == ("x", "y", "z")
    for field in ("token_ids", "sequence_start", "phase", "expert_ids", "expert_weights", "router_logits"):
        ours, theirs = getattr(joined, field), getattr(chosen, field)
        assert (ours is None and theirs is None) or np.array_equal(ours, theirs), field
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == [name]
    write_route_trace(expected, joined)
    assert read_route_trace(expected).labels == ("x", "y", "z")


def test_a_part_that_is_no_trace_is_named(tmp_path: Path) -> None:
    (tmp_path / "000000.safetensors").write_bytes(b"nonsense")
    with pytest.raises(TraceError, match=r"000000\.safetensors: "):
        find_sequences(tmp_path)


def test_an_unfinished_part_does_not_count(tmp_path: Path) -> None:
    write_part(tmp_path, trace([2], ("a",)))
    (tmp_path / "000001.tmp").write_bytes(b"half")
    assert list(find_sequences(tmp_path)) == ["a"]
    write_part(tmp_path, trace([2], ("b",)))
    assert sorted(find_sequences(tmp_path)) == ["a", "b"]


def test_labels_follow_their_sequences(tmp_path: Path) -> None:
    whole = trace([2, 3, 1, 4], ("a", "b", "c", "d"))
    for part in split(whole, 0.5, seed=3):
        assert part.labels is not None
        for label, first in zip(part.labels, part.sequence_start[:-1], strict=True):
            index = "abcd".index(label)
            assert part.token_ids[first] == whole.token_ids[whole.sequence_start[index]]
    both = merge([trace([1, 1], None), trace([2], ("x",))], ["p", "q"])
    assert both.labels == ("", "", "x")
    with pytest.raises(TraceError, match=r"t: labels: 1 \(one for each of 2 sequences\)"):
        trace([1, 1], ("a",)).validate("t")
