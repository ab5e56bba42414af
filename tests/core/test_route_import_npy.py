from pathlib import Path

import numpy as np
import pytest

from smoe.core.errors import ConfigError, TraceError
from smoe.core.route_import_npy import import_npy

RNG = np.random.default_rng(0)


def save(path: Path, array: np.ndarray) -> Path:  # type: ignore[type-arg]
    np.save(path, array)
    return path


def test_one_expert_a_layer_and_several(tmp_path: Path) -> None:
    single = RNG.integers(0, 8, (10, 3))
    trace = import_npy(save(tmp_path / "t.npy", single), num_experts=8)
    assert (trace.top_k, trace.num_experts, trace.layers, trace.num_sequences) == (1, 8, (0, 1, 2), 1)
    assert np.array_equal(trace.expert_ids[:, :, 0], single.T)
    several = RNG.random((10, 3, 6)).argsort(-1)[..., :2]
    trace = import_npy(save(tmp_path / "t.npy", several), num_experts=6, sequence_length=4)
    assert trace.sequence_start.tolist() == [0, 4, 8, 10]
    assert np.array_equal(trace.expert_ids, several.transpose(1, 0, 2))
    assert trace.fingerprint == "imported:t"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([[0, 1], [2, 8]]), r"t\.npy: \[1, 1\]: 8 \(0 to 7\)"),
        (np.array([[0, -1]]), r"\[0, 1\]: -1 \(0 to 7\)"),
        (np.array([0, 1]), r"int64 \[2\] \(integers of shape \[tokens, layers\]"),
        (np.array([[0.5]]), r"float64 \[1, 1\] \(integers"),
        (np.zeros((0, 3), dtype=int), r"shape \[0, 3\] \(a token"),
        (np.zeros((2, 3, 2), dtype=int), r"expert_ids\[0, 0\]: \[0, 0\] \(distinct"),
    ],
)
def test_bad_arrays(tmp_path: Path, array: np.ndarray, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(TraceError, match=message):
        import_npy(save(tmp_path / "t.npy", array), num_experts=8)
    with pytest.raises(ConfigError, match="num_experts: 0"):
        import_npy(tmp_path / "t.npy", num_experts=0)
    (tmp_path / "t.npy").write_bytes(b"short")
    with pytest.raises(TraceError, match=r"t\.npy: "):
        import_npy(tmp_path / "t.npy", num_experts=8)
