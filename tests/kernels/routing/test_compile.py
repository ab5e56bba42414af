"""Each kernel compiles for a GPU of this and of the last generation; no GPU is needed for that.

The interpreter takes what the compiler refuses: types that change in a loop, masks of the wrong shape, a fused
multiply-add of two types.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from smoe.kernels import moe_combine
from smoe.kernels.routing import launch
from smoe.kernels.routing.align import rank_in_group
from smoe.kernels.routing.bins import sort_by_bin
from smoe.kernels.routing.dispatch import DispatchPlan, needed_devices, pack_choices, plan_dispatch, sum_places
from smoe.kernels.routing.lookup import LayerTables, lookup, majority_device
from smoe.kernels.routing.reduce import permute_reduce, reduce_chunks
from smoe.kernels.routing.rows import gather_rows, scatter_rows
from tests.kernels.compiling import compile_into

pytestmark = pytest.mark.skipif(launch.INTERPRETED, reason="compiles instead of interpreting")
X, IDS = torch.zeros(6, 40, dtype=torch.bfloat16), torch.zeros(6, 3, dtype=torch.int32)
WEIGHTS, FIRST = torch.zeros(6, 3), IDS[:, 0].contiguous()
PLAN = DispatchPlan(counts_G=FIRST, offsets=FIRST, row_S=FIRST, device_S=FIRST, place_TG=IDS)
TABLES = LayerTables(FIRST.short(), FIRST.short(), FIRST.half(), IDS[:3].short(), IDS[:3].half())
CALLS: dict[str, Callable[[], object]] = {
    "sort": lambda: sort_by_bin(IDS, 5),
    "sort into chunks": lambda: sort_by_bin(IDS.short(), 5, 7),
    "gather": lambda: gather_rows(X, IDS[:, 0]),
    "scatter": lambda: scatter_rows(X, IDS[:, 0].long(), X.clone()),
    "needed devices": lambda: needed_devices(IDS, 5),
    "pack choices": lambda: pack_choices(PLAN, IDS, IDS, WEIGHTS),
    "sum places": lambda: sum_places(X, IDS, torch.float32),
    "sum places and residual": lambda: sum_places(X, IDS, torch.bfloat16, X),
    "permute and reduce": lambda: permute_reduce(X.expand(3, 6, 40), FIRST, torch.bfloat16, X),
    "combine": lambda: moe_combine(torch.zeros(6, 3, 40), IDS, WEIGHTS, torch.bfloat16, X),
    "combine one choice": lambda: moe_combine(torch.zeros(6, 1, 40), IDS[:, :1], WEIGHTS[:, :1], torch.float32),
    "lookup": lambda: lookup(TABLES, FIRST.long(), FIRST, FIRST),
    "lookup without chain": lambda: lookup(TABLES, FIRST, FIRST.short(), FIRST.short(), chain=False),
    "majority": lambda: majority_device(IDS, 3),
    "rank": lambda: rank_in_group(FIRST, WEIGHTS[:, 0]),
    "one of each": lambda: plan_dispatch(IDS[:1, :1], 1),
    "one row": lambda: (gather_rows(X[:1, :1], IDS[0, :1]), scatter_rows(X[:1, :1], IDS[0, :1], X.clone())),
    "one column": lambda: permute_reduce(X[:1, :1].expand(1, 1, 1), FIRST, torch.bfloat16, X[:, :1]),
    "reduce chunks": lambda: reduce_chunks(X.expand(3, 6, 40), torch.float32),
}


@pytest.fixture(params=[80, 90])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What the calls of a test compiled."""
    made: list[str] = []
    compile_into(made, int(request.param), monkeypatch, tmp_path)
    return made


@pytest.mark.parametrize("name", CALLS)
def test_compiles(made: list[str], name: str) -> None:
    CALLS[name]()
    assert made
    assert all(".entry" in ptx for ptx in made)
