"""Tables and routes that kernels trip over. Letters: T rows, K choices, S slots, D hidden, F ffn."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from smoe.kernels import ExpertTable, ExpertTensors
from smoe.kernels.int4 import Int4Tensors, quantise_expert
from smoe.kernels.int4_table import Int4Table
from smoe.kernels.slots import SlotTable
from tests.kernels.support import TOLERANCE, errors, expert64

Put = Callable[[Tensor], Tensor]
Act = Literal["silu", "gptoss"]
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Of the intermediate's rounding: fp16 keeps 11 bits, so half a step is 2**-11 = 5e-4.
LIMITS = {F32: (2e-5, 2e-6), F16: (4e-3, 6e-4), BF16: TOLERANCE[BF16]}


class Case(NamedTuple):
    rows: int
    choices: int
    slots: int
    hidden: int
    ffn: int
    act: Act = "silu"
    bias: bool = False
    route: Literal["some left out", "all to one", "none"] = "some left out"


CASES = {
    "smallest": Case(1, 1, 1, 1, 1),
    "no rows": Case(0, 2, 4, 16, 8),
    "one row, unsorted": Case(1, 8, 11, 70, 44),
    "no multiples of a block, biases": Case(7, 3, 5, 70, 133, "gptoss", True),
    "whole blocks": Case(5, 2, 4, 128, 64),
    "one expert takes all, several tiles": Case(37, 1, 6, 33, 20, "gptoss", True, "all to one"),
    "the large tile": Case(90, 2, 3, 40, 65),
    "more slots than pairs": Case(2, 4, 40, 24, 24),
    "every pair left out": Case(3, 2, 4, 20, 12, route="none"),
}


def table_of(case: Case, put: Put, dtype: torch.dtype, group_size: int | None = None) -> SlotTable[Any]:
    """Weights of `dtype`, or 4-bit ones of a group size; random biases if any."""
    sizes = (case.slots, case.hidden, case.ffn)
    experts = [_expert(case, dtype if group_size is None else F32) for _ in range(case.slots)]
    if group_size is None:
        table = ExpertTable(*sizes, act=case.act)
        for slot, expert in enumerate(experts):
            table.set(slot, ExpertTensors(*(None if t is None else put(t) for t in expert)))
        return table
    packed = Int4Table(*sizes, group_size, act=case.act)
    for slot, expert in enumerate(experts):
        codes = quantise_expert(expert, group_size)
        packed.set(slot, Int4Tensors(*(None if t is None else put(t) for t in codes)))
    return packed


def _expert(case: Case, dtype: torch.dtype) -> ExpertTensors:
    shapes = ((case.ffn, case.hidden), (case.ffn, case.hidden), (case.hidden, case.ffn))
    gate, up, down = ((torch.randn(shape) / shape[1] ** 0.5 * 1.5).to(dtype) for shape in shapes)
    biases = (torch.randn(shape[0]).to(dtype) if case.bias else None for shape in shapes)
    return ExpertTensors(gate, up, down, *biases)


def route(case: Case) -> Tensor:
    """slots_TK i32; a fifth, never the first, is left out."""
    if case.route == "all to one":
        return torch.full((case.rows, case.choices), case.slots // 2, dtype=torch.int32)
    if case.route == "none":
        return torch.full((case.rows, case.choices), -1, dtype=torch.int32)
    drawn = [torch.randperm(case.slots)[: case.choices] for _ in range(case.rows)]
    slots = torch.stack(drawn) if drawn else torch.zeros(0, case.choices)
    slots = slots.to(torch.int32).reshape(case.rows, case.choices)
    left_out = (torch.rand(slots.shape) < 0.2) & (torch.arange(slots.numel()).view(slots.shape) > 0)
    return slots.masked_fill(left_out, -1)


def expected(x_TD: Tensor, slots_TK: Tensor, table: SlotTable[Any]) -> Tensor:
    """float64 [T, K, D], NaN where the slot is left out; the intermediate rounded as the kernels do."""
    out = torch.full((*slots_TK.shape, table.hidden), torch.nan, dtype=torch.float64)
    for slot in sorted(set(slots_TK.flatten().tolist()) - {-1}):
        rows, choices = (slots_TK == slot).nonzero(as_tuple=True)
        weights = ExpertTensors(*(None if t is None else t.cpu() for t in table.weights(slot)))
        out[rows, choices] = expert64(weights, x_TD[rows], table.act, x_TD.dtype)
    return out


def check(made: Tensor, slots_TK: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    """Close where there is a slot; elsewhere as it was: NaN."""
    used = slots_TK >= 0
    assert bool(made.cpu()[~used].isnan().all())
    if not bool(used.any()):
        return
    worst, rms = errors(made.cpu()[used], wanted[used])
    assert worst < LIMITS[dtype][0], f"largest error {worst:.2e}"
    assert rms < LIMITS[dtype][1], f"RMS error {rms:.2e}"
