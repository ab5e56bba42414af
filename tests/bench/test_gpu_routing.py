"""The cases that time the routing kernels: they run (here as twins), and their bytes are those of their tensors."""

import torch

from smoe.bench.gpu import routing
from smoe.kernels.routing.bins import sort_by_bin
from smoe.kernels.routing.dispatch import plan_dispatch
from smoe.kernels.routing.rows import gather_rows


def test_every_case_runs() -> None:
    for case in routing.cases(5, torch.device("cpu")):
        assert case.nbytes > 0
        case.kernel()
        if case.twin is not None:
            case.twin()


def test_bytes_are_those_of_the_tensors() -> None:
    ids = torch.zeros(6, routing.TOP_K, dtype=torch.int32)
    made = sort_by_bin(ids, 64)
    assert routing.sort_bytes(ids.numel(), 64) == ids.nbytes + sum(t.nbytes for t in made)
    x, index = torch.zeros(9, 70, dtype=torch.bfloat16), torch.arange(4, dtype=torch.int32)
    out = gather_rows(x, index)
    assert routing.gather_bytes(4, 70, 2) == index.nbytes + out.nbytes + x[:4].nbytes
    plan = plan_dispatch(ids, routing.DEVICES)
    assert routing.plan_bytes(6) == ids.nbytes + sum(t.nbytes for t in (plan.row_S, plan.device_S, plan.place_TG))
    partials, order = torch.zeros(3, 9, 70, dtype=torch.bfloat16), torch.arange(9, dtype=torch.int32)
    assert routing.reduce_bytes(3, 9, 70, 2) == partials.nbytes + order.nbytes + 2 * x.nbytes
    pairs, weights = torch.zeros(9, 4, 70), torch.zeros(9, 4)
    assert routing.combine_bytes(9, 4, 70, 2) == pairs.nbytes + 2 * weights.nbytes + 2 * x.nbytes
    answers = torch.zeros(20, 70, dtype=torch.bfloat16)
    places = torch.zeros(9, 3, dtype=torch.int32)
    assert routing.sum_bytes(20, 9, 3, 70, 2) == answers.nbytes + 2 * x.nbytes + places.nbytes
