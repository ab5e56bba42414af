"""How near the routing kernels come to the device's memory bandwidth, and to the torch twins beside them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from smoe.bench.gpu.timing import seconds
from smoe.bench.result import Figure, Result
from smoe.kernels.combine import moe_combine, moe_combine_ref
from smoe.kernels.routing.align import align, rank_in_group, rank_in_group_ref
from smoe.kernels.routing.bins import sort_by_bin, sort_by_bin_ref
from smoe.kernels.routing.dispatch import plan_dispatch, sum_places, sum_places_ref
from smoe.kernels.routing.reduce import permute_reduce, permute_reduce_ref
from smoe.kernels.routing.rows import gather_rows, gather_rows_ref

HIDDEN, EXPERTS, TOP_K, DEVICES = 2048, 64, 8, 8
ROWS = (16, 4096)  # a decode step; a prefill step


class Case(NamedTuple):
    """A kernel and its twin on the same arguments, and the bytes that they must move: each read or written once."""

    name: str
    kernel: Callable[[], object]
    twin: Callable[[], object] | None
    nbytes: int


def measure(device: torch.device, result: Result) -> None:
    """Time of each kernel in us, its share of the bandwidth of a device copy, its twin's time over its own."""
    buffer = torch.ones(1 << 28, device=device)
    target = torch.empty_like(buffer)
    bandwidth = 2 * buffer.nbytes / seconds(lambda: target.copy_(buffer))
    result.add(Figure(figure="device memory copy", value=bandwidth / 1e9, unit="GB/s", bound="read and written"))
    for num_rows in ROWS:
        for case in cases(num_rows, device):
            took = seconds(case.kernel)
            name, bound_s = f"{case.name}, {num_rows} rows", case.nbytes / bandwidth
            bound = f"{case.nbytes / 1e6:.2f} MB: {1e6 * bound_s:.1f} us"
            result.add(Figure(figure=f"{name}: time", value=1e6 * took, unit="us", bound=bound))
            result.add(Figure(figure=f"{name}: share of the copy bound", value=100 * bound_s / took, unit="%"))
            if case.twin is not None:
                result.add(Figure(figure=f"{name}: twin over kernel", value=seconds(case.twin) / took, unit="x"))


def cases(num_rows: int, device: torch.device) -> list[Case]:
    """bf16 rows of the hidden size, random routing."""
    random = torch.Generator(device).manual_seed(1)

    def draw(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, dtype=torch.int32, device=device, generator=random)

    bf16 = torch.bfloat16
    x_TD = torch.randn(num_rows, HIDDEN, device=device).to(bf16)
    partials_RTD = torch.randn(DEVICES, num_rows, HIDDEN, device=device).to(bf16)
    pairs_TKD = torch.randn(num_rows, TOP_K, HIDDEN, device=device)
    ids_TK, device_T = draw(EXPERTS, num_rows, TOP_K), draw(DEVICES, num_rows)
    weights_TK, sure_T = torch.rand(num_rows, TOP_K, device=device), torch.rand(num_rows, device=device)
    order = sort_by_bin(device_T, DEVICES).order
    device_TK = ids_TK // (EXPERTS // DEVICES)
    plan = plan_dispatch(device_TK, DEVICES)
    answers_SD = torch.randn(len(plan.row_S), HIDDEN, device=device).to(bf16)
    capacity, num_answers = -(-num_rows // DEVICES), int(plan.offsets[-1])
    second_T = (device_T + 1) % DEVICES
    return [
        Case(
            "sort pairs by expert",
            lambda: sort_by_bin(ids_TK, EXPERTS),
            lambda: sort_by_bin_ref(ids_TK, EXPERTS),
            sort_bytes(ids_TK.numel(), EXPERTS),
        ),
        Case("dispatch plan", lambda: plan_dispatch(device_TK, DEVICES), None, plan_bytes(num_rows)),
        Case(
            "gather rows",
            lambda: gather_rows(x_TD, order),
            lambda: gather_rows_ref(x_TD, order),
            gather_bytes(num_rows, HIDDEN, 2),
        ),
        Case(
            "permute and reduce",
            lambda: permute_reduce(partials_RTD, order, bf16, x_TD),
            lambda: permute_reduce_ref(partials_RTD, order, bf16, x_TD),
            reduce_bytes(DEVICES, num_rows, HIDDEN, 2),
        ),
        Case(
            "sum of places",
            lambda: sum_places(answers_SD, plan.place_TG, bf16, x_TD),
            lambda: sum_places_ref(answers_SD, plan.place_TG, bf16, x_TD),
            sum_bytes(num_answers, num_rows, DEVICES, HIDDEN, 2),
        ),
        Case(
            "weighted combine",
            lambda: moe_combine(pairs_TKD, ids_TK, weights_TK, bf16, x_TD),
            lambda: moe_combine_ref(pairs_TKD, ids_TK, weights_TK, bf16, x_TD),
            combine_bytes(num_rows, TOP_K, HIDDEN, 2),
        ),
        Case(
            "rank in group",
            lambda: rank_in_group(device_T, sure_T),
            lambda: rank_in_group_ref(device_T, sure_T),
            12 * num_rows,
        ),
        Case("align", lambda: align(device_T, second_T, sure_T, DEVICES, capacity), None, 16 * num_rows),
    ]


def sort_bytes(num_entries: int, num_bins: int) -> int:
    """i32: entries read; order, inverse, counts and offsets written."""
    return 4 * (3 * num_entries + 2 * num_bins + 1)


def plan_bytes(num_rows: int) -> int:
    """i32: a device a choice read; places a device, and a row and a device a place written."""
    return 4 * num_rows * (TOP_K + DEVICES + 2 * min(DEVICES, TOP_K))


def gather_bytes(num_places: int, dim: int, width: int) -> int:
    """Index and rows of `width` bytes a value read, rows written."""
    return num_places * (4 + 2 * dim * width)


def reduce_bytes(num_ranks: int, num_rows: int, dim: int, width: int) -> int:
    """Partial sums, residual and order read, rows written."""
    return num_rows * (4 + (num_ranks + 2) * dim * width)


def sum_bytes(num_answers: int, num_rows: int, num_devices: int, dim: int, width: int) -> int:
    """Answers, residual and places read, rows written."""
    return (num_answers + 2 * num_rows) * dim * width + 4 * num_rows * num_devices


def combine_bytes(num_rows: int, num_choices: int, dim: int, width: int) -> int:
    """fp32 pairs, ids, weights and residual read, rows written."""
    return num_rows * (num_choices * (4 * dim + 8) + 2 * dim * width)
