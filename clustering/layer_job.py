"""One layer of a regroup job: a task that can run anywhere, and its answer on disk."""

import os
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from smoe.clustering.objective import load_imbalance, local_share
from smoe.clustering.problem import Balance, LayerProblem, Solver
from smoe.clustering.problems import layer_problem
from smoe.core.errors import TraceError
from smoe.core.route_trace import RouteTrace

Array = npt.NDArray[Any]
History = tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, slots=True, eq=False)
class LayerRules:
    """What all layers share."""

    solver: Solver
    balance: Balance
    slots_of_device: tuple[int, ...]
    seed: int
    expert_group: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LayerResult:
    """`expert_device` [E] i16. Of the sequences fitted: the local share by token id, and load, busiest over mean.
    `seconds` are of CPU time, of the solver alone."""

    expert_device: Array
    history: History
    local_share: float
    load_imbalance: float
    seconds: float
    peak_rss_bytes: int = 0


class RouteLayers(Sequence[RouteTrace]):
    """Layers of a trace by `indices`, made when asked for: each with the one after it, for solvers that look ahead,
    and nothing else."""

    def __init__(self, trace: RouteTrace, indices: Sequence[int]) -> None:
        nothing: dict[str, Any] = dict.fromkeys(("expert_weights", "router_logits", "lookahead_logits", "labels"))
        self._trace, self._indices = replace(trace, **nothing), indices

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> RouteTrace: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RouteTrace]: ...
    def __getitem__(self, index: int | slice) -> RouteTrace | Sequence[RouteTrace]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        first = self._indices[index]
        trace, here = self._trace, slice(first, first + 2)
        return replace(trace, layers=trace.layers[here], expert_ids=np.ascontiguousarray(trace.expert_ids[here]))


def solve_layer(layer: RouteTrace | Array, rules: LayerRules) -> LayerResult:
    """`layer` is one of RouteLayers, or a layer's load [E]."""
    if isinstance(layer, RouteTrace):
        problem = layer_problem(layer, 0, rules.slots_of_device, rules.expert_group)
    else:
        problem = _of_load(layer, rules)
    began = time.process_time()
    solution = rules.solver.solve(problem, rules.balance, rules.seed)
    return LayerResult(
        expert_device=solution.expert_device,
        history=solution.history,
        local_share=local_share(problem, solution),
        load_imbalance=load_imbalance(problem, solution.expert_device),
        seconds=time.process_time() - began,
    )


def task_bytes(num_tokens: int, top_k: int, num_experts: int) -> int:
    """What solving one layer of a trace takes at most, Python and the libraries included."""
    return _PROCESS_BYTES + num_tokens * (top_k * _ACTIVATION_BYTES + _TOKEN_BYTES) + 64 * num_experts**2


# Measured: 202 MB in a Ray worker for 131,000 tokens of top-4, 359 MB for a million of top-6; a bound, so well above.
_PROCESS_BYTES, _ACTIVATION_BYTES, _TOKEN_BYTES = 300 * 2**20, 72, 64


def save_result(path: Path, result: LayerResult) -> None:
    """There whole or not at all."""
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        np.savez(
            file,
            expert_device=result.expert_device,
            history=np.array(result.history, dtype=np.float64).reshape(-1, 3),
            figures=np.array(
                [result.local_share, result.load_imbalance, result.seconds, result.peak_rss_bytes], dtype=np.float64
            ),
        )
    os.replace(unfinished, path)


def read_result(path: Path) -> LayerResult:
    """Raises TraceError for a file that `save_result` did not write."""
    try:
        with np.load(path, allow_pickle=False) as file:
            share, load, seconds, peak = file["figures"].tolist()
            history = tuple((a, b, c) for a, b, c in file["history"].tolist())
            return LayerResult(file["expert_device"], history, share, load, seconds, int(peak))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise TraceError(f"{path}: {error}") from error


def _of_load(load: Array, rules: LayerRules) -> LayerProblem:
    """All tokens as one row: nothing is known of who goes with whom."""
    counts = csr_array(load[None, :].astype(np.int64))
    return LayerProblem(
        counts=counts,
        mass=np.array([max(float(load.sum()), 1.0)]),
        slots_of_device=rules.slots_of_device,
        expert_group=rules.expert_group,
    )
