"""The dispatch plan against plain Python, and a round trip through it: every choice counted once, on its device."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from smoe.kernels.routing.dispatch import DispatchPlan, pack_choices, plan_dispatch, sum_places
from smoe.kernels.routing.rows import gather_rows
from tests.kernels.support import TOLERANCE, assert_close

Put = Callable[[Tensor], Tensor]
SHAPES = [  # (T, K, G)
    (1, 1, 1),  # smallest
    (13, 3, 5),  # no power of two
    (0, 2, 4),  # a rank without tokens
    (2, 8, 3),  # more choices than devices: de-duplication in every row
    (5, 2, 9),  # more devices than a row can need
    (300, 2, 4),  # several blocks of rows
]


def random_devices(t: int, k: int, g: int) -> Tensor:
    return torch.randint(-1, g, (t, k), dtype=torch.int32)


def check(plan: DispatchPlan, device_TK: Tensor, num_devices: int) -> None:
    wanted = [sorted(set(row) - {-1}) for row in device_TK.tolist()]
    sent = [(g, t) for g in range(num_devices) for t, devices in enumerate(wanted) if g in devices]
    pad = len(device_TK) * min(num_devices, device_TK.shape[1]) - len(sent)
    assert plan.row_S.tolist() == [t for _, t in sent] + [-1] * pad
    assert plan.device_S.tolist() == [g for g, _ in sent] + [-1] * pad
    counts = [sum(h == g for h, _ in sent) for g in range(num_devices)]
    assert plan.counts_G.tolist() == counts
    assert plan.offsets.tolist() == [sum(counts[:g]) for g in range(num_devices + 1)]
    where = {pair: place for place, pair in enumerate(sent)}
    places = [[where.get((g, t), -1) for g in range(num_devices)] for t in range(len(device_TK))]
    assert plan.place_TG.tolist() == places


@pytest.mark.parametrize(("t", "k", "g"), SHAPES)
def test_each_row_goes_to_a_device_once(put: Put, t: int, k: int, g: int) -> None:
    device_TK = random_devices(t, k, g)
    check(plan_dispatch(put(device_TK), g), device_TK, g)


@pytest.mark.parametrize("device", [-1, 0, 2])  # nobody is sent; all to the first; all to the last
def test_all_rows_to_one_device(put: Put, device: int) -> None:
    device_TK = torch.full((23, 4), device, dtype=torch.int32)
    check(plan_dispatch(put(device_TK), 3), device_TK, 3)


@pytest.mark.parametrize(("t", "k", "g"), SHAPES)
def test_choices_travel_with_their_device_alone(put: Put, t: int, k: int, g: int) -> None:
    device_TK, weights_TK = random_devices(t, k, g), torch.rand(t, k).masked_fill(torch.rand(t, k) < 0.2, torch.inf)
    ids_TK = torch.randint(0, 99, (t, k), dtype=torch.int32)
    plan = plan_dispatch(put(device_TK), g)
    ids_SK, weights_SK = pack_choices(plan, put(device_TK), put(ids_TK), put(weights_TK))
    for place, (row, device) in enumerate(zip(plan.row_S.tolist(), plan.device_S.tolist(), strict=True)):
        mine = [row >= 0 and d == device for d in device_TK[row].tolist()]
        assert ids_SK[place].tolist() == [i if m else -1 for i, m in zip(ids_TK[row].tolist(), mine, strict=True)]
        assert weights_SK[place].tolist() == [
            w if m else 0 for w, m in zip(weights_TK[row].tolist(), mine, strict=True)
        ]


@pytest.mark.parametrize(("t", "k", "g"), SHAPES[:-1])
def test_round_trip_counts_every_choice_once(put: Put, t: int, k: int, g: int) -> None:
    """Expert e multiplies by e + 1; small integers, so that every order of additions has the same bits."""
    device_TK, x_TD = random_devices(t, k, g), torch.randint(-8, 8, (t, 21)).float()
    ids_TK, weights_TK = torch.randint(0, 6, (t, k), dtype=torch.int32), torch.randint(1, 4, (t, k)).float()
    plan = plan_dispatch(put(device_TK), g)
    ids_SK, weights_SK = pack_choices(plan, put(device_TK), put(ids_TK), put(weights_TK))
    factor_S = (weights_SK * (ids_SK + 1)).sum(-1)  # id -1 multiplies by 0
    partials_SD = gather_rows(put(x_TD), plan.row_S) * factor_S[:, None]
    partials_SD[plan.row_S < 0] = torch.nan  # nobody answers for places that hold no row
    y_TD = sum_places(partials_SD, plan.place_TG, torch.float32, put(x_TD))
    used_TK = weights_TK * (ids_TK + 1) * (device_TK >= 0)
    assert torch.equal(y_TD.cpu(), x_TD + x_TD * used_TK.sum(-1)[:, None])


def test_partials_are_summed_in_ascending_device(put: Put) -> None:
    """(1e8 + 1) - 1e8 = 0 in fp32, (1e8 - 1e8) + 1 = 1: places are in any order, devices are not."""
    partials = torch.tensor([1.0, -1e8, 1e8, torch.nan])[:, None].expand(4, 1030).contiguous()
    place_TG = torch.tensor([[2, 0, -1, 1], [2, 1, -1, 0]], dtype=torch.int32)
    y = sum_places(put(partials), put(place_TG), torch.float32)
    assert y[:, 0].tolist() == y[:, -1].tolist() == [0.0, 1.0]


def test_sums_of_narrow_rows_round_once(put: Put, dtype: torch.dtype) -> None:
    partials, residual = torch.randn(40, 70).to(dtype), torch.randn(10, 70).to(dtype)
    place_TG = torch.randperm(40).to(torch.int32).view(10, 4)
    place_TG[::3, 1] = -1
    y = sum_places(put(partials), put(place_TG), dtype, put(residual)).cpu()
    expected = residual.double()
    for t, places in enumerate(place_TG.tolist()):
        expected[t] += partials[[p for p in places if p >= 0]].double().sum(0)
    assert y.dtype is dtype
    assert_close(y, expected, dtype if dtype in TOLERANCE else torch.bfloat16)
