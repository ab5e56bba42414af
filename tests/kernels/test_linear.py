"""Linear and the norms against float64."""

import pytest
import torch

from smoe.kernels import LayerNorm, Linear, RMSNorm
from tests.kernels.support import BF16, DTYPES, F32, F64, assert_close, misaligned, poison_empty, rms_norm64

SHAPES = [  # (T, N, K)
    (1, 1, 1),  # smallest
    (1, 37, 45),  # neither a multiple of the tile nor of the vector
    (3, 130, 192),  # the built-in model's width; N leaves two rows over
    (7, 64, 31),  # one full tile of rows and one row; a vector and a tail
    (40, 66, 1000),  # enough rows for widened weights
    (2, 4096, 64),  # several chunks for each thread
    (300, 48, 96),  # norm shared by the threads
]


@pytest.mark.parametrize(("xtype", "wtype"), DTYPES)
@pytest.mark.parametrize(("t", "n", "k"), SHAPES)
def test_linear(
    monkeypatch: pytest.MonkeyPatch, variant: str, xtype: torch.dtype, wtype: torch.dtype, t: int, n: int, k: int
) -> None:
    x, residual = torch.randn(t, k).to(xtype), torch.randn(t, n).to(xtype)
    weight, bias = misaligned((torch.randn(n, k) / k**0.5).to(wtype)), torch.randn(n).to(wtype)
    norm = RMSNorm(torch.rand(k) + 0.5, 1e-6)
    poison_empty(monkeypatch)
    plain = x.to(F64) @ weight.to(F64).T
    assert_close(Linear(weight)(x), plain, xtype)
    assert_close(Linear(weight, bias)(x, residual), residual.to(F64) + (plain + bias.to(F64)), xtype)
    normed = norm.reference(x).to(F64) @ weight.to(F64).T
    assert_close(Linear(weight, norm=norm)(x), normed, xtype)
    wide = Linear(weight, bias, norm, out_dtype=F32)(x)
    assert wide.dtype is F32
    assert_close(wide, normed + bias.to(F64), xtype)


def test_norm_inside_equals_norm_before(native_variant: str) -> None:
    for xtype in (F32, BF16):
        x, weight = torch.randn(5, 200).to(xtype), torch.randn(33, 200)
        norm = RMSNorm(torch.rand(200), 1e-5)
        assert torch.equal(Linear(weight, norm=norm)(x), Linear(weight)(norm(x)))


def test_bf16_weights_in_fp32_are_the_same_numbers(native_variant: str) -> None:
    for t in (1, 2, 5, 17, 18, 64):  # below and above the row count from which weights are widened
        x, weight = torch.randn(t, 333), torch.randn(70, 333).to(BF16)
        assert torch.equal(Linear(weight)(x), Linear(weight.float())(x))


def test_strided_weight_and_input(variant: str) -> None:
    both = torch.randn(40, 64)
    x = torch.randn(3, 64).T.contiguous().T  # column-major
    assert_close(Linear(both[::2])(x), x.to(F64) @ both[::2].to(F64).T, F32)


def test_wrong_shapes_are_named(variant: str) -> None:
    layer = Linear(torch.randn(8, 16))
    with pytest.raises((ValueError, RuntimeError)):
        layer(torch.randn(2, 15))
    if variant != "torch":
        with pytest.raises(ValueError, match=r"residual must be torch\.float32"):
            layer(torch.randn(2, 16), torch.randn(1, 8))


@pytest.mark.parametrize("xtype", [F32, BF16])
@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize(("t", "d"), [(1, 1), (3, 48), (2, 67), (600, 200)])  # tails, and enough rows for two threads
def test_rms_norm(
    monkeypatch: pytest.MonkeyPatch, variant: str, xtype: torch.dtype, plus_one: bool, t: int, d: int
) -> None:
    x, weight = (torch.randn(t, d) * 3).to(xtype), torch.randn(d)
    norm = RMSNorm(weight, 1e-6, plus_one)
    poison_empty(monkeypatch)
    y = norm(x)
    assert y.dtype is xtype
    assert_close(y, rms_norm64(x, weight + 1.0 if plus_one else weight, 1e-6), xtype)
    assert_close(y, norm.reference(x), xtype)


def test_rms_norm_rounds_before_the_weight() -> None:
    """The order of Hugging Face: weight * x.to(dtype)."""
    x, weight = torch.randn(64, 96).to(BF16), (torch.rand(96) + 0.5).to(BF16)
    wide = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    same = (RMSNorm(weight, 1e-6)(x) == weight * wide.to(BF16)).float().mean()
    assert same > 0.999  # rsqrt may differ in its last bit


def test_layer_norm() -> None:
    x, weight, bias = torch.randn(4, 30), torch.randn(30), torch.randn(30)
    expected = torch.nn.functional.layer_norm(x.double(), (30,), weight.double(), bias.double(), 1e-5)
    assert_close(LayerNorm(weight, bias, 1e-5)(x), expected, F32)
