from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from smoe.clustering.layer_job import LayerResult, LayerRules, RouteLayers, read_result, save_result, solve_layer
from smoe.clustering.problem import Balance, LayerProblem, LayerSolution
from smoe.clustering.problems import transitions
from smoe.core.errors import TraceError
from tests.clustering.routes import drawn


@dataclass
class Asked:
    """A solver that puts experts in order, and keeps what it was asked."""

    name: str = "asked"
    problem: LayerProblem | None = None

    def solve(self, problem: LayerProblem, balance: Balance, seed: int) -> LayerSolution:
        self.problem = problem
        device = np.repeat(np.arange(problem.num_devices), problem.slots_of_device).astype(np.int16)
        rows = problem.local(device).argmax(axis=1).astype(np.int16)
        return LayerSolution(expert_device=device, row_device=rows, history=((1.0, 0.5, 1.5),))


def rules(solver: Asked) -> LayerRules:
    return LayerRules(solver, Balance(), (5, 3), seed=0)


def test_a_layer_travels_with_the_one_after_it_and_nothing_else() -> None:
    trace = drawn(60, layers=3)
    weights = np.full(trace.expert_ids.shape, 0.5, dtype=np.float16)
    layers = RouteLayers(replace(trace, expert_weights=weights, labels=("x",) * 3), [1, 2])
    assert [layer.layers for layer in layers] == [(1, 2), (2,)]
    assert layers[0].expert_weights is None
    assert layers[0].labels is None
    assert layers[0].expert_ids.base is None or layers[0].expert_ids.flags.c_contiguous
    with pytest.raises(IndexError):
        layers[2]
    solver = Asked()
    result = solve_layer(layers[0], rules(solver))
    assert solver.problem is not None
    assert solver.problem.next_counts is not None
    assert np.array_equal(solver.problem.next_counts, transitions(trace.expert_ids[1], trace.expert_ids[2], 8))
    load = np.bincount(trace.expert_ids[1].ravel(), minlength=8)
    assert result.load_imbalance == pytest.approx(max(load[:5].sum(), load[5:].sum()) / (load.sum() / 2))
    solve_layer(layers[1], rules(solver))
    assert solver.problem.next_counts is None


@pytest.mark.parametrize("load", [[4, 0, 0, 3, 0, 1, 0, 0], [0] * 8, [0, 0, 9, 0, 0, 0, 0, 0]])
def test_a_layer_of_loads(load: list[int]) -> None:
    result = solve_layer(np.array(load), rules(Asked()))
    total = sum(load)
    assert result.load_imbalance == pytest.approx(max(sum(load[:5]), sum(load[5:])) / (total / 2) if total else 1.0)


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "layer.npz"
    for history in ((), ((1.0, 0.25, 1.5), (0.5, 0.75, 1.25))):
        result = LayerResult(np.array([0, 1, 1], dtype=np.int16), history, 0.5, 1.25, 3.5, 2**40)
        save_result(path, result)
        again = read_result(path)
        assert again.expert_device.tolist() == [0, 1, 1]
        for field in ("history", "local_share", "load_imbalance", "seconds", "peak_rss_bytes"):
            assert getattr(again, field) == getattr(result, field)
    assert [file.name for file in tmp_path.iterdir()] == ["layer.npz"]
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(TraceError, match=r"layer\.npz: "):
        read_result(path)
