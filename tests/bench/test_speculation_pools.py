"""Two emulated processors: figures for every choice, outputs checked on the way, constants found from measurements."""

import json
import math
import os

import numpy as np
import pytest
import torch

from smoe.bench.speculation import pools
from smoe.bench.speculation.pools import BOUND, CHOICES, Pools, measure_pools
from smoe.core.errors import ConfigError
from smoe.kernels import ExpertTensors
from smoe.offload.policies.balance import LinearSides
from tests.sim.test_sensors import trace

HIDDEN, FFN, EXPERTS, TOP_K = 48, 40, 8, 3
TWO_CORES = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="a core for each side"
)


def experts():
    generator = torch.Generator().manual_seed(2)
    shapes = ((FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN))
    return [
        ExpertTensors(*(torch.randn(shape, generator=generator).to(torch.bfloat16) / 7 for shape in shapes))
        for _ in range(EXPERTS)
    ]


@TWO_CORES
def test_figures_of_every_choice():
    found = measure_pools(
        experts(), trace(lengths=(40,), experts=EXPERTS, k=TOP_K), hidden=HIDDEN, rows=5, most_windows=3, repeats=2
    )
    json.dumps(found["samples"])
    assert isinstance(found["sides"], LinearSides)
    assert len(found["summary"]) == 4 * len(CHOICES)
    assert all(figure.value is not None and math.isfinite(figure.value) for figure in found["summary"])
    assert all(figure.figure.startswith("emulated: ") for figure in found["summary"])
    by_choice = found["samples"]["by_choice"]
    for choice in CHOICES:
        assert len(by_choice[choice]) == 3
        for bound, sample in zip(by_choice[BOUND], by_choice[choice], strict=True):
            ends = [max(s["foretold_fast_s"], s["foretold_slow_s"]) for s in (bound, sample)]
            assert ends[0] <= ends[1] * (1 + 1e-9), "nothing is foretold to be better than the bound"
            assert bound["hot"] + bound["cold"] == sample["hot"] + sample["cold"]


@TWO_CORES
def test_sides_write_what_they_are_told_and_nothing_else():
    made = Pools(experts(), hidden=HIDDEN, rows=2, top_k=TOP_K, seed=0)
    ids = np.array([[0, 3, 5], [3, 5, 7]], np.int32)
    made.alone(ids, [3], fast=False)
    assert made.pairs_TKD.isnan().all(-1).tolist() == [[True, False, True], [False, True, True]]
    made.both(ids, [0, 7], [5])
    assert not made.pairs_TKD.isnan().any()
    made.close()


@TWO_CORES
def test_outputs_that_differ_are_an_error(monkeypatch):
    monkeypatch.setattr(pools, "_reference", lambda made, ids: torch.zeros_like(made.pairs_TKD))
    with pytest.raises(RuntimeError, match="outputs of two sides differ from those of one"):
        measure_pools(experts(), trace(lengths=(40,), experts=EXPERTS, k=TOP_K), hidden=HIDDEN, rows=5)


def test_one_core_is_too_few(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    with pytest.raises(ConfigError, match=r"^cores: 1 \(two, one for each side\)$"):
        Pools(experts(), hidden=HIDDEN, rows=2, top_k=TOP_K, seed=0)
