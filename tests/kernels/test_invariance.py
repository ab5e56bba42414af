"""A row's bits do not depend on the other rows, on how they are cut into calls, or on the thread count."""

import pytest
import torch
from torch import Tensor

from smoe.kernels import Attention, ExpertTable, GatedMLP, Linear, RMSNorm, Rows, moe
from tests.kernels.support import BF16, F32, random_expert

ROWS = 70
XTYPES = [F32, BF16]


@pytest.mark.parametrize("xtype", XTYPES)
def test_linear_over_row_counts_and_threads(native_variant: str, xtype: torch.dtype) -> None:
    for wtype in (F32, BF16):  # 1030 rows of weights: several chunks for each thread
        layer = Linear(torch.randn(1030, 203).to(wtype), torch.randn(1030), RMSNorm(torch.rand(203), 1e-6))
        x, residual = torch.randn(ROWS, 203).to(xtype), torch.randn(ROWS, 1030).to(xtype)
        whole = layer(x, residual)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for t in range(1, ROWS + 1):
                assert torch.equal(layer(x[:t], residual[:t]), whole[:t]), (threads, t)
            for t in range(0, ROWS, 9):
                assert torch.equal(layer(x[t : t + 1], residual[t : t + 1]), whole[t : t + 1]), (threads, t)


@pytest.mark.parametrize("xtype", XTYPES)
@pytest.mark.parametrize("num_experts", [4, 40])  # many rows an expert, and few
def test_moe_over_row_counts_and_threads(native_variant: str, xtype: torch.dtype, num_experts: int) -> None:
    table = ExpertTable(num_experts, 96, 70)
    for slot in range(num_experts):
        table.set(slot, random_expert(96, 70, BF16))
    mlp = GatedMLP(*random_expert(96, 70, BF16)[:3])
    x = torch.randn(ROWS, 96).to(xtype)
    ids = torch.stack([torch.randperm(num_experts)[:3] for _ in range(ROWS)]).to(torch.int32)
    weights = torch.rand(ROWS, 3)
    whole, dense = moe(x, ids, ids, weights, table, x), mlp(x, x)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for t in range(1, ROWS + 1):
            part = slice(0, t) if t % 2 else slice(ROWS - t, ROWS)
            assert torch.equal(moe(x[part], ids[part], ids[part], weights[part], table, x[part]), whole[part])
            assert torch.equal(mlp(x[part], x[part]), dense[part])


def rows_at(past: int, num: int, kv_start: int) -> Rows:
    return Rows(torch.full((num,), kv_start), torch.arange(past, past + num), ((0, num, kv_start, past),))


@pytest.mark.parametrize("xtype", XTYPES)
@pytest.mark.parametrize("window", [None, 100])
def test_attention_over_chunkings_and_threads(native_variant: str, xtype: torch.dtype, window: int | None) -> None:
    heads, kv_heads, d, total = 4, 2, 56, 1300  # long enough for splits spread over threads
    attention = Attention(heads, kv_heads, d, 0, 0.3, window, sinks=torch.randn(heads))
    qkv = torch.randn(total, (heads + 2 * kv_heads) * d).to(xtype)

    def run(chunks: list[int], kv_start: int) -> Tensor:
        k_cache, v_cache = (torch.full((total + 50, kv_heads, d), float("nan")).to(xtype) for _ in range(2))
        out, past = [], 0
        for num in chunks:
            rows = rows_at(past, num, kv_start)
            out.append(attention(qkv[past : past + num], None, None, rows, k_cache, v_cache))
            past += num
        return torch.cat(out)

    whole = run([total], 0)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        assert torch.equal(run([total], 7), whole)
        assert torch.equal(run([1] * total, 3), whole)
        assert torch.equal(run([7, 500, 1, 64, 65, 63, 2, 598], 50), whole)


def test_attention_beside_other_sequences(native_variant: str) -> None:
    attention = Attention(4, 2, 32, 0, 0.3)
    k_cache, v_cache = torch.randn(2000, 2, 32), torch.randn(2000, 2, 32)
    qkv = torch.randn(20, 8 * 32)
    starts, positions = torch.arange(20) * 100, torch.arange(20) * 3 % 90
    spans = tuple((i, 1, i * 100, i * 3 % 90) for i in range(20))
    whole = attention(qkv, None, None, Rows(starts, positions, spans), k_cache, v_cache)
    for i in range(20):
        rows = Rows(starts[i : i + 1], positions[i : i + 1], ((0, 1, *spans[i][2:]),))
        assert torch.equal(attention(qkv[i : i + 1], None, None, rows, k_cache, v_cache), whole[i : i + 1])


def test_both_instruction_sets_agree() -> None:
    """Not promised to users, but true, and a strong check of the narrower variant."""
    from smoe.kernels import native

    results = []
    for name in ("avx512", "avx2"):
        try:
            native.use(name)
        except ValueError as error:
            pytest.skip(str(error))
        torch.manual_seed(1)
        mlp = GatedMLP(*random_expert(77, 50, BF16)[:3], norm=RMSNorm(torch.rand(77), 1e-6))
        results.append(mlp(torch.randn(30, 77)))
    assert torch.equal(*results)
