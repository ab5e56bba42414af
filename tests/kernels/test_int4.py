"""The 4-bit form: what is stored, how far off it is; experts in it have the bits of the same weights in fp32."""

import pytest
import torch
from torch import Tensor

from smoe.kernels import ExpertTable, ExpertTensors, Int4Table, Int4Tensors, moe, moe_pairs
from smoe.kernels.int4 import (
    BLOCK,
    GROUP_SIZES,
    code_bytes,
    dequantise,
    dequantise_expert,
    expert_shapes,
    pack,
    quantise,
    quantise_expert,
    quantise_ref,
)
from tests.kernels.support import BF16, F32, F64, assert_close, errors, expert64, moe64, poison_empty, random_expert

COLUMNS = [1, 16, 31, 33, 48, 70, 128, 192, 300]
SHAPES = [  # (T, K, E, D, F)
    (1, 8, 64, 192, 48),  # the built-in model at batch 1
    (1, 1, 1, 16, 16),  # less than a block
    (5, 3, 7, 70, 45),  # no size is a multiple of anything
    (7, 2, 3, 300, 130),  # several groups, the last shorter; 5 rows and more an expert
    (40, 2, 3, 64, 33),  # enough rows an expert that weights are multiplied out once
]


def tables(num: int, dim: int, ffn: int, group_size: int, act: str = "silu", bias: bool = False):
    """A table in 4 bits, and the one of the same weights in fp32."""
    packed, plain = Int4Table(num, dim, ffn, group_size, act), ExpertTable(num, dim, ffn, act)
    for slot in range(num):
        expert = quantise_expert(random_expert(dim, ffn, BF16, bias), group_size)
        packed.set(slot, expert)
        plain.set(slot, dequantise_expert(expert, dim, ffn, group_size))
    return packed, plain


def routing(t: int, k: int, e: int) -> tuple[Tensor, Tensor]:
    ids = torch.stack([torch.randperm(e)[:k] for _ in range(t)]).to(torch.int32)
    return ids, torch.rand(t, k)


def test_the_stored_form_is_as_described() -> None:
    """Column 32 b + j is the low half of byte 16 b + j, column 32 b + 16 + j the high half, as q + 8."""
    q = torch.arange(64).remainder(16).sub(8).view(1, 64)
    codes = pack(q)
    assert codes.shape == (1, 32)
    for column in range(64):
        byte = int(codes[0, column // BLOCK * 16 + column % 16])
        half = byte >> 4 if column % BLOCK >= 16 else byte & 15
        assert half == int(q[0, column]) + 8
    scales = torch.tensor([[0.5, -2.0]], dtype=BF16)
    expected = q.float() * torch.tensor([0.5] * 32 + [-2.0] * 32)
    assert torch.equal(dequantise(codes, scales, 64, 32), expected)


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_quantise(variant: str, group_size: int, dtype: torch.dtype, search: bool) -> None:
    for columns in COLUMNS:
        weight = torch.randn(11, columns).to(dtype)
        weight[3], weight[4] = 0, 1e30
        weight[5] = torch.where(torch.arange(columns) % 2 == 0, 1.0, -1.0)  # equally far on both sides
        codes, scales = quantise(weight, group_size, search=search)
        assert codes.shape == (11, code_bytes(columns))
        assert scales.shape == (11, -(-columns // group_size))
        back = dequantise(codes, scales, columns, group_size)
        expected = dequantise(*quantise_ref(weight, group_size, search=search), columns, group_size)
        if not search:
            assert torch.equal(back, expected)
        error, least = ((q - weight).square().sum(1) for q in (back, expected))
        assert torch.allclose(error, least, rtol=1e-4, atol=0)
        assert not back[3].any()
        padded = code_bytes(columns) * 2
        assert not dequantise(codes, torch.ones_like(scales), padded, group_size)[:, columns:].any()


def test_a_searched_scale_is_never_worse_and_mostly_better(variant: str) -> None:
    weight = torch.randn(64, 512)
    errors = {}
    for group_size in GROUP_SIZES:
        for search in (False, True):
            back = dequantise(*quantise(weight, group_size, search=search), 512, group_size)
            errors[group_size, search] = (back - weight).view(64, -1, group_size).square().sum(-1)
        assert bool((errors[group_size, True] <= errors[group_size, False] * (1 + 1e-6)).all())
        assert float(errors[group_size, True].sum()) < 0.8 * float(errors[group_size, False].sum())
    assert float(errors[32, True].sum()) < float(errors[64, True].sum()) < float(errors[128, True].sum())


def test_an_unknown_group_size_is_named() -> None:
    with pytest.raises(ValueError, match=r"group_size: 48 \(one of 32, 64, 128\)"):
        quantise(torch.ones(2, 96), 48)


@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize(("t", "k", "e", "d", "f"), SHAPES)
def test_moe_has_the_bits_of_the_same_weights_in_fp32(
    monkeypatch: pytest.MonkeyPatch, variant: str, group_size: int, t: int, k: int, e: int, d: int, f: int
) -> None:
    (packed, plain), (ids, weights), x = tables(e, d, f, group_size), routing(t, k, e), torch.randn(t, d)
    slots = ids.roll(1, 0) if t > 1 else ids.clone()
    if k > 1:
        slots[0, 0] = -1
    poison_empty(monkeypatch)
    actual = moe(x, slots, ids, weights, packed, x)
    assert torch.equal(actual, moe(x, slots, ids, weights, plain, x))
    assert_close(actual, moe64(x, slots, ids, weights, plain) + x.double(), F32)
    pairs = torch.zeros(2, t, k, d)
    moe_pairs(x, slots, packed, pairs[0])
    moe_pairs(x, slots, plain, pairs[1])
    assert torch.equal(*pairs)


@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize(("t", "k", "e", "d", "f"), [*SHAPES, (1, 2, 3, 2100, 64), (9, 1, 2, 64, 4200)])
def test_bf16_rows(
    monkeypatch: pytest.MonkeyPatch, variant: str, group_size: int, t: int, k: int, e: int, d: int, f: int
) -> None:
    """Rows in bf16 may be rounded to 8 bits on the way; then the result is that of rows so rounded."""
    (packed, plain), (ids, weights), x = tables(e, d, f, group_size), routing(t, k, e), torch.randn(t, d).to(BF16)
    poison_empty(monkeypatch)
    actual = torch.zeros(t, k, d)
    moe_pairs(x, ids, packed, actual)
    exact, rounded = torch.zeros(2, t, k, d, dtype=F64)
    for row in range(t):
        for choice, slot in enumerate(ids[row].tolist()):
            exact[row, choice] = expert64(plain.tensors(slot), x[row : row + 1], "silu", BF16)[0]
            rounded[row, choice] = rounded_expert64(plain.tensors(slot), x[row : row + 1])[0]
    worst, rms = min(errors(actual, rounded), errors(actual, exact))
    assert worst < 0.05, f"largest error {worst:.2e}"  # an h beside a border of bf16 or of 8 bits may fall otherwise
    assert rms < 2e-3, f"RMS error {rms:.2e}"
    assert errors(actual, exact)[1] < 0.02
    assert_close(moe(x, ids, ids, weights, packed, x), (actual * weights[..., None]).sum(1) + x.double(), BF16)


def round8(x: Tensor) -> Tensor:
    """Every 64 columns to whole multiples of the largest over 127."""
    columns = x.shape[-1]
    blocks = torch.nn.functional.pad(x.float(), (0, -columns % 64)).unflatten(-1, (-1, 64))
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    return (torch.where(scale > 0, blocks * (1 / scale), 0.0).round() * scale).flatten(-2)[..., :columns]


def rounded_expert64(e: ExpertTensors, x: Tensor) -> Tensor:
    gate, up = (round8(x).double() @ matrix.double().T for matrix in e[:2])
    h = (gate * torch.sigmoid(gate) * up).to(BF16)
    return round8(h).double() @ e.down.double().T


@pytest.mark.parametrize("xtype", [F32, BF16])
def test_gptoss_activation_and_biases(variant: str, xtype: torch.dtype) -> None:
    (packed, plain), (ids, weights) = tables(6, 48, 40, 32, "gptoss", bias=True), routing(30, 2, 6)
    x = torch.randn(30, 48).to(xtype) * 6  # some gates and ups pass the limit of 7
    actual = moe(x, ids, ids, weights, packed)
    expected = moe(x, ids, ids, weights, plain)
    if xtype is F32:
        assert torch.equal(actual, expected)
    assert errors(actual, expected)[1] < 0.01


@pytest.mark.parametrize("xtype", [F32, BF16])
def test_over_row_counts_and_threads(native_variant: str, xtype: torch.dtype) -> None:
    """A row's bits depend neither on the other rows nor on the threads."""
    (packed, _), (ids, weights), x = tables(3, 100, 70, 64), routing(50, 2, 3), torch.randn(50, 100).to(xtype)
    whole = moe(x, ids, ids, weights, packed)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for t in range(1, 51):
            part = slice(0, t) if t % 2 else slice(50 - t, 50)
            assert torch.equal(moe(x[part], ids[part], ids[part], weights[part], packed), whole[part]), (threads, t)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("xtype", [F32, BF16])
def test_nan_stays_in_its_row(native_variant: str, xtype: torch.dtype, wrong: float) -> None:
    (packed, _), (ids, weights), x = tables(3, 70, 45, 32), routing(6, 2, 3), torch.randn(6, 70).to(xtype)
    whole = moe(x, ids, ids, weights, packed)
    x[2, 69] = wrong
    spoilt = moe(x, ids, ids, weights, packed)
    assert not spoilt[2].isfinite().any()
    assert torch.equal(spoilt[[0, 1, 3, 4, 5]], whole[[0, 1, 3, 4, 5]])


def test_wrong_tensors_are_named(variant: str) -> None:
    expert, table = quantise_expert(random_expert(96, 40, F32), 32), Int4Table(2, 96, 40, 32)
    with pytest.raises(ValueError, match=r"down_scales is torch.bfloat16 \[96, 1\].*expected torch.bfloat16 \[96, 2\]"):
        table.set(0, expert._replace(down_scales=expert.down_scales[:, :1].contiguous()))
    with pytest.raises(ValueError, match=r"gate is torch.int8"):
        table.set(0, expert._replace(gate=expert.gate.view(torch.int8)))
    with pytest.raises(LookupError, match="empty"):
        moe(torch.ones(1, 96), *(torch.zeros(1, 1, dtype=torch.int32),) * 2, torch.ones(1, 1), table)
    assert list(expert_shapes(96, 40, 32)) == list(Int4Tensors._fields)
