"""Attention against float64: windows, sinks, partial rotary, several sequences, poisoned arena."""

import pytest
import torch
from torch import Tensor

from smoe.kernels import Attention, RMSNorm, Rows
from tests.kernels.support import BF16, F32, F64, assert_close, poison_empty


def rows_of(*spans: tuple[int, int, int]) -> Rows:
    """From (num_rows, kv_start, past) of each sequence."""
    starts: list[int] = []
    positions: list[int] = []
    full: list[tuple[int, int, int, int]] = []
    first = 0
    for num, kv_start, past in spans:
        starts += [kv_start] * num
        positions += range(past, past + num)
        full.append((first, num, kv_start, past))
        first += num
    return Rows(torch.tensor(starts), torch.tensor(positions), tuple(full))


def attention64(a: Attention, q_THd: Tensor, rows: Rows, k_cache: Tensor, v_cache: Tensor) -> Tensor:
    """One row and head at a time over the finished caches."""
    out = torch.zeros(q_THd.shape, dtype=F64)
    group = a.num_heads // a.num_kv_heads
    for t, (start, pos) in enumerate(zip(rows.kv_start_T.tolist(), rows.pos_T.tolist(), strict=True)):
        low = 0 if a.window is None else max(0, pos - a.window + 1)
        for h in range(a.num_heads):
            keys = slice(start + low, start + pos + 1)
            logits = k_cache[keys, h // group].to(F64) @ q_THd[t, h].to(F64) * a.scale
            if a.sinks is not None:
                logits = torch.cat([logits, a.sinks[h : h + 1].to(F64)])
            weights = logits.softmax(0)[: pos + 1 - low]
            out[t, h] = weights @ v_cache[keys, h // group].to(F64)
    return out.flatten(1)


CASES = [  # (H, Hkv, d, window, sinks, spans)
    (6, 2, 32, None, False, [(1, 3, 0)]),  # a first token
    (6, 2, 32, None, False, [(1, 0, 700), (1, 900, 63), (1, 1000, 64), (3, 1100, 510)]),  # edges of blocks and splits
    (4, 4, 24, None, True, [(1, 0, 1100)]),  # d is no multiple of the vector; three splits
    (4, 1, 80, 64, False, [(1, 0, 200), (40, 300, 30)]),  # a window as long as a block
    (2, 1, 48, 1, True, [(5, 0, 20)]),  # each row sees itself
    (2, 1, 16, 130, True, [(30, 2, 500)]),  # rows whose windows start in two splits
    (8, 2, 64, None, True, [(70, 5, 0), (1, 400, 9)]),  # prefill over several tiles beside a decode
    (51, 1, 16, None, False, [(3, 0, 5)]),  # more heads in a group than rows in a tile
]


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(("heads", "kv_heads", "d", "window", "with_sinks", "spans"), CASES)
def test_attention(
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    d: int,
    window: int | None,
    with_sinks: bool,
    spans: list[tuple[int, int, int]],
) -> None:
    rows = rows_of(*spans)
    num_rows, size = len(rows.pos_T), max(start + past + num for num, start, past in spans)
    sinks = torch.randn(heads) * 2 if with_sinks else None
    attention = Attention(heads, kv_heads, d, 0, d**-0.5, window, sinks=sinks)
    qkv = torch.randn(num_rows, (heads + 2 * kv_heads) * d).to(dtype)
    k_cache, v_cache = poisoned_caches(rows, size + 70, kv_heads, d, dtype)
    poison_empty(monkeypatch)
    out = attention(qkv, None, None, rows, k_cache, v_cache)
    q, k, v = torch.split(qkv.view(num_rows, -1, d), [heads, kv_heads, kv_heads], 1)
    at = rows.kv_start_T + rows.pos_T
    assert torch.equal(k_cache[at], k)
    assert torch.equal(v_cache[at], v)
    assert_close(out, attention64(attention, q, rows, k_cache, v_cache), dtype)


def poisoned_caches(rows: Rows, size: int, kv_heads: int, d: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Random keys and values where sequences have some, NaN elsewhere."""
    caches = torch.full((2, size, kv_heads, d), float("nan")).to(dtype)
    for _, _, kv_start, past in rows.spans:
        caches[:, kv_start : kv_start + past] = torch.randn(2, past, kv_heads, d).to(dtype)
    return caches[0], caches[1]


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("rotary_dim", [32, 12, 0])  # whole, partial, none
@pytest.mark.parametrize("num_rows", [1, 60])
def test_norms_and_rotary_equal_the_twin(variant: str, dtype: torch.dtype, rotary_dim: int, num_rows: int) -> None:
    q_norm, k_norm = (RMSNorm(torch.rand(32) + 0.5, 1e-6) for _ in range(2))
    attention = Attention(4, 2, 32, rotary_dim, 0.2, None, q_norm, k_norm)
    rows = rows_of((num_rows, 4, 17))
    angle = torch.rand(num_rows, rotary_dim // 2) * 6
    cos, sin = (angle.cos(), angle.sin()) if rotary_dim else (None, None)
    qkv = torch.randn(num_rows, 8 * 32).to(dtype)
    k_cache, v_cache = caches = poisoned_caches(rows, 100, 2, 32, dtype)
    theirs = [cache.clone() for cache in caches]
    out = attention(qkv, cos, sin, rows, k_cache, v_cache)
    expected = attention.reference(qkv, cos, sin, rows, theirs[0], theirs[1])
    assert_close(out, expected, dtype)
    written = rows.kv_start_T + rows.pos_T
    assert_close(caches[0][written], theirs[0][written], dtype)
    assert torch.equal(caches[1][written], theirs[1][written])


def test_window_edge(variant: str) -> None:
    """The last key of the window counts, the one before does not."""
    attention = Attention(1, 1, 16, 0, 1.0, window=3)
    k_cache, v_cache = torch.zeros(8, 1, 16), torch.zeros(8, 1, 16)
    v_cache[:, 0, 0] = torch.tensor([1000.0, 100.0, 10.0, 1.0, 0, 0, 0, 0])
    qkv = torch.zeros(1, 48)
    out = attention(qkv, None, None, rows_of((1, 0, 4)), k_cache, v_cache)
    assert_close(out[0, :1], torch.tensor([11.0 / 3]), F32)


def test_sinks_only_widen_the_denominator(variant: str) -> None:
    k_cache, v_cache = torch.zeros(4, 1, 16), torch.ones(4, 1, 16)
    qkv = torch.cat([torch.zeros(1, 32), torch.ones(1, 16)], 1)
    for sink, share in ((0.0, 4 / 5), (-1e4, 1.0), (50.0, 0.0)):
        attention = Attention(1, 1, 16, 0, 1.0, sinks=torch.tensor([sink]))
        out = attention(qkv, None, None, rows_of((1, 0, 3)), k_cache, v_cache)
        assert abs(float(out[0, 0]) - share) < 1e-6


def test_sizes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="num_heads=6 num_kv_heads=4"):
        Attention(6, 4, 32, 32, 1.0)
    with pytest.raises(ValueError, match="window=0"):
        Attention(4, 4, 32, 32, 1.0, window=0)
