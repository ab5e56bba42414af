"""The gated delta net against its recurrence in float64; bits depend on the sequence alone. Letters: delta.py."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from smoe.kernels import GatedDelta, RMSNorm
from tests.kernels.support import BF16, F32, F64, assert_close, poison_empty, rms_norm64

G, H, K, V, TAPS = 3, 6, 21, 84, 4  # a block of 64 columns, one of 16 and a rest; an odd key size
C = 2 * G * K + H * V
WIDTH = C + H * V + 2 * H
EPS = 1e-6


class Case:
    """A net, and a sequence of `total` tokens."""

    def __init__(self, total: int, xtype: torch.dtype, taps: int = TAPS) -> None:
        self.conv, self.factor = torch.randn(C, taps) / taps**0.5, torch.rand(V) + 0.5
        self.a_log, self.dt_bias = torch.randn(H) - 1, torch.randn(H)
        self.net = GatedDelta(G, K, self.conv, self.a_log, self.dt_bias, RMSNorm(self.factor, EPS))
        self.x = torch.randn(total, WIDTH).to(xtype)
        self.taps = taps

    def states(self, slots: int) -> tuple[Tensor, Tensor]:
        """Full of NaN, so that a state that does not start from zero shows."""
        return torch.full((slots, self.taps - 1, C), torch.nan), torch.full((slots, H, K, V), torch.nan)

    def expected(self, which: slice) -> Tensor:
        """One sequence from its start."""
        mixed, z, b, a = torch.split(self.x[which].to(F64), [C, H * V, H, H], dim=1)
        padded = functional.pad(mixed, (0, 0, self.taps - 1, 0))
        mixed = sum(padded[j : j + len(mixed)] * self.conv[:, j].to(F64) for j in range(self.taps))  # type: ignore[assignment]
        q, k, v = torch.split(functional.silu(mixed), [G * K, G * K, H * V], dim=1)
        q, k = (part.view(-1, G, K) for part in (q, k))
        q, k = (part / (part.square().sum(2, keepdim=True) + 1e-6).sqrt() for part in (q, k))
        q, k = (part.repeat_interleave(H // G, dim=1) for part in (q, k))
        decay = (-self.a_log.to(F64).exp() * functional.softplus(a + self.dt_bias.to(F64))).exp()
        state, out = torch.zeros(H, K, V, dtype=F64), []
        for t in range(len(q)):
            state = state * decay[t].view(H, 1, 1)
            error = v[t].view(H, V) - torch.einsum("hkv,hk->hv", state, k[t])
            state = state + torch.einsum("hk,hv->hkv", k[t], error * b[t].sigmoid().unsqueeze(1))
            out.append(torch.einsum("hkv,hk->hv", state, q[t]) / K**0.5)
        read = rms_norm64(torch.stack(out), self.factor, EPS)
        return (read * functional.silu(z.view(-1, H, V))).flatten(1)


@pytest.mark.parametrize("xtype", [F32, BF16])
@pytest.mark.parametrize("taps", [TAPS, 1, 7])
def test_gated_delta(variant: str, xtype: torch.dtype, taps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(90, xtype, taps)  # more rows than are taken at a time, the cut within a sequence
    states = case.states(4)
    poison_empty(monkeypatch)
    y = case.net(case.x, ((0, 38, 0, 2), (38, 52, 0, 0)), *states)
    assert_close(y[:38], case.expected(slice(0, 38)), xtype)
    assert_close(y[38:], case.expected(slice(38, 90)), xtype)
    for state in states:
        assert state[[1, 3]].isnan().all()
        assert state[[0, 2]].isfinite().all()


def test_large_rates(variant: str) -> None:
    """softplus beyond its exponential's range, and decays that vanish."""
    case = Case(20, F32)
    case.x[::3, -H:] = 200.0
    case.x[1::3, -H:] = -200.0
    assert_close(case.net(case.x, ((0, 20, 0, 0),), *case.states(1)), case.expected(slice(None)), F32)


@pytest.mark.parametrize("xtype", [F32, BF16])
def test_bits_depend_on_the_sequence_alone(variant: str, xtype: torch.dtype) -> None:
    """The twin promises it, too. Chunks shorter than the convolution shift its tail."""
    case = Case(100, xtype)
    states = case.states(1)
    whole = case.net(case.x, ((0, 100, 0, 0),), *states)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for chunks in ([1] * 100, [2, 1, 30, 67]):
            parts, past = case.states(2), 0
            for count in chunks:
                part = case.net(case.x[past : past + count], ((0, count, past, 1),), *parts)
                assert torch.equal(part, whole[past : past + count]), (threads, chunks)
                past += count
            for part, state in zip(parts, states, strict=True):
                assert torch.equal(part[1], state[0])
        both = case.states(3)
        case.net(case.x[:20], ((0, 20, 0, 2),), *both)
        mixed = case.net(torch.cat((case.x[:9], case.x[20:])), ((0, 9, 0, 0), (9, 80, 20, 2)), *both)
        assert torch.equal(mixed, torch.cat((whole[:9], whole[20:])))


def test_a_bad_number_stays_in_its_sequence(variant: str) -> None:
    case = Case(20, F32)
    spans = ((0, 12, 0, 0), (12, 8, 0, 1))
    clean = case.net(case.x, spans, *case.states(2))
    bad = case.x.clone()
    bad[4, G * K] = torch.nan  # of a key: everything that its head reads later
    states = case.states(2)
    y = case.net(bad, spans, *states)
    assert y[4:12].isnan().any(1).all()
    assert torch.equal(y[:4], clean[:4])
    assert torch.equal(y[12:], clean[12:])
    assert torch.equal(case.net(case.x, spans, *states), clean), "a new sequence in a poisoned slot"


def test_the_width_must_fit() -> None:
    case = Case(3, F32)
    with pytest.raises(ValueError, match=f"has {WIDTH - 1} columns, expected {WIDTH}"):
        case.net(case.x[:, 1:], ((0, 3, 0, 0),), *case.states(1))
