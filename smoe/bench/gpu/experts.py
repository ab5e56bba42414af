"""How right the expert kernels are beside their twins in fp32, and how near they come to what the device's memory and
matrix units allow. Both ceilings are measured in the same run."""

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, NamedTuple

import torch
from torch import Tensor

from smoe.bench.gpu.timing import seconds
from smoe.bench.result import Figure, Result
from smoe.kernels import ExpertTable, ExpertTensors
from smoe.kernels.int4 import Int4Tensors, quantise_expert
from smoe.kernels.int4_table import Int4Table
from smoe.kernels.mixture import moe, moe_pairs, moe_pairs_ref, moe_ref
from smoe.kernels.slots import SlotTable

READ_BYTES, PRODUCT = 1 << 30, 8192
DENSE_ROWS, INT4_ROWS = (1, 8, 32, 512, 4096), (1, 8, 32)
NUM_ROUTES = 8  # in turn: one alone could stay in the device's cache
LIMITS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2e-2}  # largest relative error


class Geometry(NamedTuple):
    """Of a layer of experts."""

    hidden: int = 2048
    ffn: int = 1024
    experts: int = 64
    top_k: int = 8


class Case(NamedTuple):
    """A kernel and its twin on the same routes, and what they must do: bytes read or written once, operations."""

    name: str
    kernel: Callable[[], object]
    twin: Callable[[], object]
    nbytes: int
    flops: int


def measure(device: torch.device, result: Result) -> None:
    """Errors by dtype and form; time, share of the roofline, and the twin's time over it by rows."""
    for figure in correctness(device, Geometry(520, 270, 6, 3)):
        result.add(figure)
    buffer = torch.ones(READ_BYTES // 4, device=device)
    bandwidth = READ_BYTES / seconds(lambda: buffer.sum())
    a = torch.randn(PRODUCT, PRODUCT, device=device).to(torch.bfloat16)
    peak = 2 * PRODUCT**3 / seconds(lambda: a @ a)
    result.add(Figure(figure="bf16 matrix product", value=peak / 1e12, unit="TFLOP/s", bound=f"{PRODUCT} cubed"))
    for case in cases(device, Geometry()):
        took, by_bytes, by_flops = seconds(case.kernel), case.nbytes / bandwidth, case.flops / peak
        floor = max(by_bytes, by_flops)
        term = f"{case.nbytes / 1e6:.1f} MB" if by_bytes >= by_flops else f"{case.flops / 1e9:.1f} GFLOP"
        bound = f"{term}: {1e6 * floor:.1f} us"
        result.add(Figure(figure=f"{case.name}: time", value=1e6 * took, unit="us", bound=bound))
        result.add(Figure(figure=f"{case.name}: share of the roofline", value=100 * floor / took, unit="%"))
        twin_s = seconds(case.twin, repeats=5, warm_up=1)
        result.add(Figure(figure=f"{case.name}: twin over kernel", value=twin_s / took, unit="x"))


def correctness(device: torch.device, geometry: Geometry) -> Iterator[Figure]:
    """Largest error of a pair, relative to the larger of it and the RMS; sizes no multiple of a block; with biases."""
    random = torch.Generator(device).manual_seed(2)
    for dtype, limit in LIMITS.items():
        x_TD = torch.randn(37, geometry.hidden, device=device, generator=random).to(dtype)
        ids_TK = routes(37, geometry, device)[0]
        for group_size in (None, 64, 128):
            table = table_of(geometry, device, dtype, group_size, "gptoss")
            made = torch.full((*ids_TK.shape, geometry.hidden), torch.nan, device=device)
            wanted = made.clone()
            moe_pairs(x_TD, ids_TK, table, made)
            moe_pairs_ref(x_TD.float(), ids_TK, _widened(table), wanted)
            error = float(((made - wanted).abs() / torch.maximum(wanted.abs(), wanted.square().mean().sqrt())).max())
            form = "dense" if group_size is None else f"4 bits in groups of {group_size}"
            name = f"experts, {str(dtype).removeprefix('torch.')}, {form}: largest error"
            yield Figure(figure=name, value=error, unit="", goal=f"< {limit}", met=error < limit)


def cases(device: torch.device, geometry: Geometry) -> Iterator[Case]:
    """bf16 rows, random routes; one table in memory at a time."""
    for group_size, form, all_rows in ((None, "bf16", DENSE_ROWS), (64, "4-bit", INT4_ROWS)):
        table = table_of(geometry, device, torch.bfloat16, group_size, "silu")
        for num_rows in all_rows:
            x_TD = torch.randn(num_rows, geometry.hidden, device=device).to(torch.bfloat16)
            weights_TK = torch.full((num_rows, geometry.top_k), 1 / geometry.top_k, device=device)
            ids = routes(num_rows, geometry, device)
            used = sum(int((ids_TK.flatten().bincount() > 0).sum()) for ids_TK in ids) / len(ids)
            pairs = num_rows * geometry.top_k
            yield Case(
                f"{form} experts, {num_rows} rows",
                _each(moe, x_TD, ids, weights_TK, table),
                _each(moe_ref, x_TD, ids, weights_TK, table),
                round(used * expert_bytes(table)) + 2 * x_TD.nbytes + 8 * pairs,
                6 * pairs * geometry.hidden * geometry.ffn,
            )


def _each(
    mixture: Callable[..., Tensor], x_TD: Tensor, ids: list[Tensor], weights_TK: Tensor, table: SlotTable[Any]
) -> Callable[[], Tensor]:
    """One call of the mixture with the next route."""
    turns = cycle(ids)

    def call() -> Tensor:
        ids_TK = next(turns)
        return mixture(x_TD, ids_TK, ids_TK, weights_TK, table)

    return call


def routes(num_rows: int, geometry: Geometry, device: torch.device) -> list[Tensor]:
    """[T, K] i32: experts of a row differ."""
    random = torch.Generator(device).manual_seed(3)
    draws = [torch.rand(num_rows, geometry.experts, device=device, generator=random) for _ in range(NUM_ROUTES)]
    return [draw.topk(geometry.top_k, dim=1).indices.to(torch.int32) for draw in draws]


def table_of(
    geometry: Geometry, device: torch.device, dtype: torch.dtype, group_size: int | None, act: Any
) -> SlotTable[Any]:
    """Random experts, biases with "gptoss"; 4-bit ones of a group size."""
    hidden, ffn, num_experts, _ = geometry
    random = torch.Generator(device).manual_seed(1)
    dense = ExpertTable(num_experts, hidden, ffn, act=act)
    packed = None if group_size is None else Int4Table(num_experts, hidden, ffn, group_size, act=act)
    for slot in range(num_experts):
        shapes = ((ffn, hidden), (ffn, hidden), (hidden, ffn))
        weights = [torch.randn(s, device=device, generator=random) / s[1] ** 0.5 for s in shapes]
        biases = [torch.randn(s[0], device=device, generator=random) for s in shapes] if act == "gptoss" else []
        if packed is not None and group_size is not None:
            packed.set(slot, quantise_expert(ExpertTensors(*weights, *biases), group_size, search=False))
        else:
            dense.set(slot, ExpertTensors(*(t.to(dtype) for t in (*weights, *biases))))
    return dense if packed is None else packed


def _widened(table: SlotTable[Any]) -> ExpertTable:
    """The same weights in fp32."""
    wide = ExpertTable(table.num_slots, table.hidden, table.ffn, act=table.act, alpha=table.alpha, limit=table.limit)
    for slot in range(table.num_slots):
        gate, up, down, *biases = table.weights(slot)
        floats = (None if bias is None else bias.float() for bias in biases)
        wide.set(slot, ExpertTensors(gate.float(), up.float(), down.float(), *floats))
    return wide


def expert_bytes(table: SlotTable[Any]) -> int:
    """Of one expert as it is read."""
    held: ExpertTensors | Int4Tensors = table.tensors(0)
    return sum(tensor.nbytes for tensor in held if tensor is not None)
