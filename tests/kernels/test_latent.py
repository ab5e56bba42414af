"""Latent attention against the plain formula in float64; bits depend on the context alone. Letters as in latent.py."""

import pytest
import torch
from torch import Tensor

from smoe.kernels import LatentAttention, RMSNorm, Rows
from tests.kernels.support import BF16, DTYPES, F32, F64, assert_close, poison_empty, rms_norm64

H, L, N, R, V = 7, 40, 24, 6, 20  # a head more than a tile holds; rows that fill no vector
EPS, SCALE = 1e-6, 0.2


def rows_of(*spans: tuple[int, int, int]) -> Rows:
    """From (rows, kv_start, past) of each sequence."""
    starts, positions, layout = [], [], []
    for count, kv_start, past in spans:
        layout.append((len(starts), count, kv_start, past))
        starts += [kv_start] * count
        positions += range(past, past + count)
    return Rows(torch.tensor(starts), torch.tensor(positions), tuple(layout))


class Case:
    """Weights, inputs of `total` tokens and their angles."""

    def __init__(self, total: int, xtype: torch.dtype, wtype: torch.dtype) -> None:
        self.key_up, self.value_up = torch.randn(H, L, N).div(N**0.5).to(wtype), torch.randn(H, V, L).to(wtype)
        self.factor = torch.rand(L) + 0.5
        self.attention = LatentAttention(self.key_up, self.value_up, R, SCALE, RMSNorm(self.factor, EPS))
        self.q, self.kv = torch.randn(total, H * (N + R)).to(xtype), torch.randn(total, L + R).to(xtype)
        angles = torch.randn(total, R // 2)
        self.cos, self.sin = angles.cos(), angles.sin()

    def caches(self, num_rows: int) -> tuple[Tensor, Tensor]:
        """Full of NaN, so that reading a row that is not the sequence's shows."""
        return tuple(torch.full((num_rows, size), torch.nan, dtype=self.q.dtype) for size in (L, R))  # type: ignore[return-value]

    def run(self, which: slice, rows: Rows, caches: tuple[Tensor, Tensor]) -> Tensor:
        inputs = (part[which].contiguous() for part in (self.q, self.kv, self.cos, self.sin))
        return self.attention(*inputs, rows, *caches)

    def expected(self, which: slice, pasts: list[int]) -> Tensor:
        """Keys and values of the whole context expanded by kv_b, as the model is defined; one sequence."""
        q_THX = self.q[which].to(F64).view(-1, H, N + R)
        latent_TL = self.attention.norm.reference(self.kv[which, :L]).to(F64)  # rounded as it is cached
        cos, sin = self.cos[which].to(F64), self.sin[which].to(F64)
        key_TR = turn(self.kv[which, L:].to(F64), cos, sin).to(self.q.dtype).to(F64)
        k_TH = torch.einsum("tl,hln->thn", latent_TL, self.key_up.to(F64))
        v_TH = torch.einsum("tl,hvl->thv", latent_TL, self.value_up.to(F64))
        q_rope_THR = turn(q_THX[..., N:], cos.unsqueeze(1), sin.unsqueeze(1))
        scores_HTJ = torch.einsum("thn,jhn->htj", q_THX[..., :N], k_TH) + torch.einsum(
            "thr,jr->htj", q_rope_THR, key_TR
        )
        hidden_TJ = torch.ones(len(pasts), len(pasts), dtype=torch.bool).triu(1)
        weights_HTJ = (scores_HTJ * SCALE).masked_fill(hidden_TJ, -torch.inf).softmax(2)
        return torch.einsum("htj,jhv->thv", weights_HTJ, v_TH).flatten(1)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


@pytest.mark.parametrize(("xtype", "wtype"), DTYPES)
def test_latent_attention(
    variant: str, xtype: torch.dtype, wtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison_empty(monkeypatch)
    case = Case(190, xtype, wtype)  # two sequences: across two blocks of 64 keys, and within one
    y = case.run(slice(None), rows_of((150, 9, 0), (40, 200, 0)), case.caches(300))
    assert_close(y[:150], case.expected(slice(0, 150), list(range(150))), xtype)
    assert_close(y[150:], case.expected(slice(150, 190), list(range(40))), xtype)


def test_caches_hold_normalised_latents_and_turned_keys(variant: str) -> None:
    case = Case(5, F32, F32)
    latents, keys = caches = case.caches(12)
    case.run(slice(None), rows_of((5, 3, 0)), caches)
    assert_close(latents[3:8], rms_norm64(case.kv[:, :L], case.factor, EPS), F32)
    assert_close(keys[3:8], turn(case.kv[:, L:].to(F64), case.cos.to(F64), case.sin.to(F64)), F32)
    for cache in caches:
        assert cache[[0, 1, 2, 8, 9, 10, 11]].isnan().all()


@pytest.mark.parametrize(("xtype", "wtype"), [(F32, F32), (BF16, BF16)])
def test_bits_depend_on_the_context_alone(native_variant: str, xtype: torch.dtype, wtype: torch.dtype) -> None:
    case = Case(140, xtype, wtype)
    whole = case.run(slice(None), rows_of((140, 5, 0)), case.caches(150))
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for chunks in ([1] * 140, [63, 2, 75], [100, 40]):
            caches, past = case.caches(400), 0
            for count in chunks:
                part = case.run(slice(past, past + count), rows_of((count, 77, past)), caches)
                assert torch.equal(part, whole[past : past + count]), (threads, chunks)
                past += count
        caches = case.caches(400)
        case.run(slice(0, 139), rows_of((139, 200, 0)), caches)
        both = case.run(slice(139, 140), rows_of((1, 200, 139)), caches)
        assert torch.equal(both, whole[139:])


def test_more_rows_than_are_held_at_once(native_variant: str) -> None:
    """A latent so wide that its queries are carried over a few rows at a time."""
    heads, latent = 64, 2048
    attention = LatentAttention(
        torch.randn(heads, latent, 2), torch.randn(heads, 1, latent), 2, 0.01, RMSNorm(torch.ones(latent), EPS)
    )
    total = 80
    q, kv, cos, sin = (
        torch.randn(total, heads * 4),
        torch.randn(total, latent + 2),
        torch.ones(total, 1),
        torch.zeros(total, 1),
    )
    caches = torch.full((total, latent), torch.nan), torch.full((total, 2), torch.nan)
    y = attention(q, kv, cos, sin, rows_of((total, 0, 0)), *caches)
    again = torch.full((total, latent), torch.nan), torch.full((total, 2), torch.nan)
    assert_close(y, attention.reference(q, kv, cos, sin, rows_of((total, 0, 0)), *again), F32)


def test_a_bad_number_stays_in_its_sequence(variant: str) -> None:
    case = Case(20, F32, F32)
    clean = case.run(slice(None), rows_of((12, 0, 0), (8, 50, 0)), case.caches(60))
    case.kv[4, 2] = torch.nan
    y = case.run(slice(None), rows_of((12, 0, 0), (8, 50, 0)), case.caches(60))
    assert y[4:12].isnan().all()
    assert torch.equal(y[:4], clean[:4])
    assert torch.equal(y[12:], clean[12:])


def test_dtypes_must_agree() -> None:
    case = Case(3, F32, F32)
    with pytest.raises(ValueError, match=r"must be torch\.float32"):
        case.run(slice(None), rows_of((3, 0, 0)), tuple(c.to(BF16) for c in case.caches(4)))  # type: ignore[arg-type]
