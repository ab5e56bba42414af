"""The kernels compile for GPUs of this and of the last generation, and what their promises about bits rest on holds."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smoe.kernels import ExpertTable, ExpertTensors, moe, native
from smoe.kernels.int4 import Int4Tensors, expert_shapes
from smoe.kernels.int4_table import Int4Table
from smoe.kernels.routing import launch
from smoe.kernels.triton_moe.int4 import MAGIC
from smoe.kernels.triton_moe.pairs import device_pairs
from tests.kernels.compiling import compile_into

pytestmark = pytest.mark.skipif(launch.INTERPRETED, reason="compiles instead of interpreting")
BF16, F32 = torch.bfloat16, torch.float32
HIDDEN, FFN, SLOTS, CHOICES = 256, 128, 4, 2
FEW, MANY = 8, 128  # rows: for the small and for the large tile
SMALL_GROUPS = pytest.param(32, FEW, False, marks=pytest.mark.slow)  # eight groups a turn: long to compile


@pytest.fixture(params=[pytest.param(80, marks=pytest.mark.slow), 90])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What the calls of a test compiled, by capability."""
    made: list[str] = []
    compile_into(made, int(request.param), monkeypatch, tmp_path)
    return made


def compile_pairs(table: ExpertTable | Int4Table, rows: int, dtype: torch.dtype) -> None:
    slots, x = torch.zeros(rows, CHOICES, dtype=torch.int32), torch.zeros(rows, HIDDEN, dtype=dtype)
    assert device_pairs(x, slots, table, torch.zeros(rows, CHOICES, HIDDEN))


def dense(dtype: torch.dtype, bias: bool) -> ExpertTable:
    table = ExpertTable(SLOTS, HIDDEN, FFN, act="gptoss" if bias else "silu")
    shapes = ((FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN))
    biases = [torch.zeros(shape[0], dtype=dtype) for shape in shapes] if bias else []
    table.set(0, ExpertTensors(*(torch.zeros(shape, dtype=dtype) for shape in shapes), *biases))
    return table


def packed(group_size: int, bias: bool) -> Int4Table:
    table = Int4Table(SLOTS, HIDDEN, FFN, group_size, act="gptoss" if bias else "silu")
    parts = expert_shapes(HIDDEN, FFN, group_size).items()
    tensors = {n: torch.zeros(shape, dtype=dtype) for n, (dtype, shape) in parts if bias or not n.endswith("bias")}
    table.set(0, Int4Tensors(**tensors))
    return table


def instructions(made: list[str]) -> set[str]:
    """The kinds of matrix instruction in what was compiled."""
    return {name for ptx in made for name in re.findall(r"\b(?:mma\.sync|wgmma\.mma)[\w.]*", ptx)}


@pytest.mark.parametrize("bias", [False, True])
def test_one_matrix_instruction_for_every_number_of_rows(made: list[str], bias: bool) -> None:
    """Another one could add up a row in another order, and a row's bits would depend on how many rows there are."""
    for rows in (1, FEW, MANY):
        compile_pairs(dense(BF16, bias), rows, BF16)
    assert instructions(made) == {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"}
    assert any("cp.async.cg" in ptx for ptx in made)  # 16 bytes at a time, ahead of their use


@pytest.mark.parametrize(("dtype", "weights"), [(F32, F32), (F32, BF16), (BF16, F32)])
def test_fp32_is_not_rounded_to_fewer_bits(made: list[str], dtype: torch.dtype, weights: torch.dtype) -> None:
    compile_pairs(dense(weights, bias=False), FEW, dtype)
    assert len(made) >= 2
    assert not instructions(made)  # no tensor core: those would take fp32 as tf32


@pytest.mark.parametrize(("group_size", "rows", "bias"), [(64, FEW, True), (128, 1, False), SMALL_GROUPS])
def test_4_bits(made: list[str], group_size: int, rows: int, bias: bool) -> None:
    compile_pairs(packed(group_size, bias), rows, BF16)
    assert instructions(made) == {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"}
    assert any("cp.async" in ptx for ptx in made)


class Reads(TorchDispatchMode):
    """Notes what would wait for the device: a value read on the host, a shape that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> Any:
        if any(name in str(func) for name in ("local_scalar_dense", "nonzero", "masked_select", "aten.index.")):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [1, FEW])
def test_the_host_reads_nothing_back(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """So a step can be captured in a CUDA graph, once the table's form is up to date."""
    native.use("torch")
    ids, x = torch.zeros(rows, CHOICES, dtype=torch.int32), torch.zeros(rows, HIDDEN, dtype=BF16)
    tables = dense(BF16, True), packed(64, True)
    started: list[str] = []
    monkeypatch.setattr(launch, "INTERPRETED", True)
    monkeypatch.setattr(launch, "launch", lambda body, *args, **constants: started.append(body.__name__))
    for module in ("routing.bins", "triton_moe.grouped", "triton_moe.int4", "combine"):
        monkeypatch.setattr(f"smoe.kernels.{module}.launch", launch.launch)
    for table in tables:
        started.clear()
        with Reads() as reads:
            moe(x, ids, ids, torch.zeros(rows, CHOICES), table, x)
        assert reads.found == []
        assert started == (["_sort"] if rows > 1 else []) + ["_gate_up", "_down", "_combine"]


@pytest.mark.parametrize("dtype", MAGIC)
def test_a_code_in_the_lowest_bits_is_a_whole_number(dtype: torch.dtype) -> None:
    """The interpreter computes no bf16, so the constants are tried out here."""
    bits, zero = MAGIC[dtype]
    integer = torch.int32 if dtype is F32 else torch.int16
    codes = torch.arange(16, dtype=integer)
    assert ((codes | bits).view(dtype) - zero).tolist() == list(range(-8, 8))
