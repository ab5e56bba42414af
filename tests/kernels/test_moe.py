"""Experts and their sum against float64; empty slots; order of the sum."""

import pytest
import torch
from torch import Tensor

from smoe.kernels import ExpertTable, GatedMLP, RMSNorm, moe, moe_combine, moe_pairs
from tests.kernels.support import BF16, DTYPES, F32, F64, assert_close, expert64, moe64, poison_empty, random_expert

SHAPES = [  # (T, K, E, D, F)
    (1, 8, 64, 192, 48),  # the built-in model at batch 1
    (1, 1, 1, 16, 16),  # smallest, k = E = 1
    (5, 3, 7, 70, 45),  # no size is a multiple of the vector; some experts stay empty
    (33, 2, 3, 64, 33),  # more than WIDEN_FROM rows for some experts, not for others
    (9, 300, 300, 20, 18),  # k = E, 300 experts
    (64, 1, 40, 33, 130),  # k = 1
]


def build(num: int, dim: int, ffn: int, dtype: torch.dtype, act: str = "silu", bias: bool = False) -> ExpertTable:
    table = ExpertTable(num, dim, ffn, act)  # type: ignore[arg-type]
    for slot in range(num):
        table.set(slot, random_expert(dim, ffn, dtype, bias))
    return table


def routing(t: int, k: int, e: int) -> tuple[Tensor, Tensor]:
    ids = torch.stack([torch.randperm(e)[:k] for _ in range(t)]).to(torch.int32)
    return ids, torch.rand(t, k)


@pytest.mark.parametrize(("xtype", "wtype"), DTYPES)
@pytest.mark.parametrize(("t", "k", "e", "d", "f"), SHAPES)
def test_moe(
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
    xtype: torch.dtype,
    wtype: torch.dtype,
    t: int,
    k: int,
    e: int,
    d: int,
    f: int,
) -> None:
    table, (ids, weights), x = build(e, d, f, wtype), routing(t, k, e), torch.randn(t, d).to(xtype)
    slots = ids.roll(1, 0) if t > 1 else ids.clone()  # slots and ids are different things
    if k > 1:
        slots[0, 0] = -1
    poison_empty(monkeypatch)
    expected = moe64(x, slots, ids, weights, table)
    assert_close(moe(x, slots, ids, weights, table), expected, xtype)
    assert_close(moe(x, slots, ids, weights, table, residual=x), expected + x.to(F64), xtype)


@pytest.mark.parametrize("xtype", [F32, BF16])
def test_gptoss_activation_and_biases(variant: str, xtype: torch.dtype) -> None:
    table, (ids, weights) = build(6, 48, 40, xtype, "gptoss", bias=True), routing(11, 2, 6)
    x = torch.randn(11, 48).to(xtype) * 6  # some gates and ups pass the limit of 7
    assert_close(moe(x, ids, ids, weights, table), moe64(x, ids, ids, weights, table), xtype)


@pytest.mark.parametrize("rows", [1, 50])  # the whole table idle but one expert: its rows shared by the threads
def test_all_rows_to_one_expert(variant: str, rows: int) -> None:
    table, x = build(5, 96, 64, BF16), torch.randn(rows, 96)
    ids, weights = torch.full((rows, 1), 3, dtype=torch.int32), torch.rand(rows, 1)
    assert_close(moe(x, ids, ids, weights, table), moe64(x, ids, ids, weights, table), F32)


def test_pairs_then_combine_equals_moe(native_variant: str) -> None:
    for t, xtype in ((1, F32), (30, F32), (30, BF16)):
        table, (ids, weights), x = build(9, 100, 60, BF16), routing(t, 4, 9), torch.randn(t, 100).to(xtype)
        pairs = torch.full((t, 4, 100), float("nan"))
        moe_pairs(x, ids, table, pairs)
        assert torch.equal(moe_combine(pairs, ids, weights, xtype, x), moe(x, ids, ids, weights, table, x))


def test_pairs_leave_skipped_ones_alone(variant: str) -> None:
    table, (ids, _), x = build(4, 32, 16, F32), routing(6, 2, 4), torch.randn(6, 32)
    slots = ids.masked_fill(ids == 2, -1)
    pairs = torch.full((6, 2, 32), float("inf"))
    moe_pairs(x, slots, table, pairs)
    assert bool(pairs[slots < 0].isinf().all())
    assert bool(pairs[slots >= 0].isfinite().all())


def test_sum_runs_in_ascending_expert_id(variant: str) -> None:
    """1e8 + 1 - 1e8 depends on the order; the choices arrive in every order, the sum must not."""
    value = {3: 1e8, 7: 1.0, 11: -1e8}  # ascending: (1e8 + 1) - 1e8 = 0 in fp32
    for order in ((3, 7, 11), (11, 7, 3), (7, 3, 11), (7, 11, 3), (3, 11, 7)):
        pairs = torch.tensor([value[i] for i in order]).view(1, 3, 1).expand(1, 3, 20).contiguous()
        ids = torch.tensor([order], dtype=torch.int32)
        assert torch.equal(moe_combine(pairs, ids, torch.ones(1, 3), F32), torch.zeros(1, 20)), order


def test_empty_and_foreign_slots_raise_before_anything_is_written(variant: str) -> None:
    table, x = build(3, 16, 16, F32), torch.randn(1, 16)
    table.clear(1)
    pairs, weights = torch.full((1, 2, 16), 5.0), torch.ones(1, 2)
    for slots, error in (([0, 1], LookupError), ([0, 3], IndexError)):
        ids = torch.tensor([slots], dtype=torch.int32)
        with pytest.raises(error, match="slot"):
            moe(x, ids, ids, weights, table)
        with pytest.raises(error, match="slot"):
            moe_pairs(x, ids, table, pairs)
    assert bool((pairs == 5.0).all())
    table.set(1, random_expert(16, 16, F32))
    moe(x, torch.tensor([[0, 1]], dtype=torch.int32), torch.tensor([[0, 1]], dtype=torch.int32), weights, table)


def test_wrong_expert_tensors_are_named(variant: str) -> None:
    table, expert = ExpertTable(1, 16, 8), random_expert(16, 8, F32)
    with pytest.raises(ValueError, match=r"down is torch.float32 \[8, 16\]"):
        table.set(0, expert._replace(down=expert.gate))
    with pytest.raises(ValueError, match="unit stride"):
        table.set(0, expert._replace(down=torch.randn(8, 16).T))
    with pytest.raises(ValueError, match="act='relu' is unknown"):
        ExpertTable(1, 16, 8, "relu")  # type: ignore[arg-type]


@pytest.mark.parametrize(("xtype", "wtype"), DTYPES)
@pytest.mark.parametrize("t", [1, 40])
def test_gated_mlp(variant: str, xtype: torch.dtype, wtype: torch.dtype, t: int) -> None:
    expert, norm, x = random_expert(90, 50, wtype), RMSNorm(torch.rand(90) + 0.5, 1e-6), torch.randn(t, 90).to(xtype)
    plain, full = GatedMLP(*expert[:3]), GatedMLP(*expert[:3], norm=norm)
    assert_close(plain(x), expert64(expert, x, "silu", xtype), xtype)
    expected = x.to(F64) + expert64(expert, norm.reference(x), "silu", xtype)
    assert_close(full(x, x), expected, xtype)
