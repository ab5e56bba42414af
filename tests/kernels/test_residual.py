"""What the 4-bit form does not know: with both, every bf16 matrix comes back bit for bit."""

import pytest
import torch
from torch import Tensor

from smoe.kernels import native
from smoe.kernels.int4 import GROUP_SIZES, code_bytes, num_groups, pack, quantise
from smoe.kernels.residual import MARGIN, decode_into, encode, encode_ref
from tests.kernels.support import BF16, misaligned

SHAPES = [(3, 1), (2, 16), (4, 31), (5, 33), (7, 70), (6, 128), (9, 300)]  # N, K


def patterns(weight: Tensor) -> Tensor:
    return weight.contiguous().view(torch.int16)


def of_patterns(values: Tensor, columns: int) -> Tensor:
    return values.to(torch.int16).view(BF16).view(-1, columns)


def check(weight: Tensor, codes: Tensor, scales: Tensor, group_size: int) -> float:
    """Bytes kept of a weight, once both sides of the round trip are found to agree."""
    residual, twin = (make(weight, codes, scales, group_size) for make in (encode, encode_ref))
    assert torch.equal(residual.content, twin.content)
    assert torch.equal(residual.row_bytes, twin.row_bytes)
    assert residual.check == twin.check
    rest = torch.full((9,), 0xAA, dtype=torch.uint8)  # of another matrix behind it
    back = torch.full_like(weight, float("nan"))
    found = decode_into(back, torch.cat((residual.content, rest)), codes, scales, group_size)
    assert torch.equal(patterns(back), patterns(weight))
    assert found == (len(residual.content), residual.check)
    assert int(residual.row_bytes.sum()) == len(residual.content)
    return len(residual.content) / weight.numel()


@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_trained_looking_weights_take_little_more_than_a_byte(variant: str, group_size: int) -> None:
    for rows, columns in SHAPES:
        weight = torch.randn(rows, columns).to(BF16)
        check(weight, *quantise(weight, group_size), group_size)
    weight = torch.randn(24, 1024).to(BF16)
    assert 1.10 < check(weight, *quantise(weight, group_size), group_size) < 1.14


@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_any_weights(variant: str, group_size: int) -> None:
    """Zeros of both signs, values beyond any scale, denormals, the largest, and patterns that are none of a weight."""
    for rows, columns in SHAPES:
        numbers = torch.randn(rows, columns)
        for factor in (0.0, -0.0, 1e-41, 1e-38, 1e-30, 1e30, 3e38):
            weight = (numbers.clamp(-1, 1) * factor).to(BF16)
            check(weight, *quantise(weight, group_size), group_size)
        weight = of_patterns(torch.randint(0, 1 << 16, (rows * columns,)), columns)
        check(weight, *quantise(numbers, group_size), group_size)
        mixed = torch.where(torch.rand(rows, columns) < 0.5, numbers.to(BF16), torch.zeros(1, dtype=BF16))
        check(mixed, *quantise(mixed, group_size), group_size)


@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_any_codes_and_scales(variant: str, group_size: int) -> None:
    """Also those that no quantisation gives: every code beside every kind of scale, infinite products too."""
    for rows, columns in SHAPES:
        codes = torch.randint(0, 256, (rows, code_bytes(columns)), dtype=torch.uint8)
        for scale in (0.0, 1.0, -0.37, 1e-38, 3e38):
            scales = torch.full((rows, num_groups(columns, group_size)), scale, dtype=BF16)
            check((torch.randn(rows, columns) * scale).to(BF16), codes, scales, group_size)


def test_the_stored_form_is_as_described(variant: str) -> None:
    scales = torch.tensor([[1.5]], dtype=BF16)  # pattern 0x3fc0; half of it 0x3f40; -2 * 1.5 is 0xc040
    codes = pack(torch.tensor([[1, -2, 0, 0, 0, 7, *[0] * 26]]))
    weight = of_patterns(torch.tensor([0x3FC5, 0xC03F, 0x3F30, 0xBF3F, 0x1234, 0x0000]), 6)
    residual = encode(weight, codes, scales, 32)
    assert residual.content.tolist() == [5, 0xFF, 0x10, 0x81, 0x80, 0x80, 0x34, 0x12, 0x00, 0x00]
    assert residual.row_bytes.tolist() == [10]
    check(weight, codes, scales, 32)


def test_at_the_ends_of_what_a_byte_holds(variant: str) -> None:
    """Of code 1 and scale 1 (0x3f80) 127 patterns either way; of code 0 (0x3f00) the octave below, both signs."""
    near = torch.arange(0x3F80 - 130, 0x3F80 + 130)
    codes, scales = pack(torch.ones(1, 288)), torch.ones(1, 3, dtype=BF16)
    assert len(encode(of_patterns(near, 260), codes, scales, 128).content) == 260 + 2 * (260 - 255)
    check(of_patterns(near, 260), codes, scales, 128)
    below = torch.cat((torch.arange(0x3F00 - 130, 0x3F02), torch.arange(0xBF00 - 130, 0xBF02)))
    codes = pack(torch.zeros(1, 288))
    # Of each 132 there are 128 in the octave; -0.5 itself would be the byte that says "listed".
    assert len(encode(of_patterns(below, 264), codes, scales, 128).content) == 264 + 2 * (264 - 256 + 1)
    check(of_patterns(below, 264), codes, scales, 128)


@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_rebuilt_over_its_own_residual(variant: str, group_size: int) -> None:
    """As near as MARGIN allows, with many listed weights too."""
    for rows, columns in SHAPES:
        for zeros in (0.0, 0.3):
            weight = torch.randn(rows, columns).to(BF16) * (torch.rand(rows, columns) >= zeros)
            codes, scales = quantise(weight, group_size)
            residual = encode(weight, codes, scales, group_size)
            in_starts = residual.row_bytes.cumsum(0) - residual.row_bytes
            out_starts = 2 * columns * torch.arange(rows)
            ahead = max(0, int((out_starts - in_starts).max()) + columns + MARGIN)
            memory = torch.zeros(max(ahead + len(residual.content), 2 * weight.numel()), dtype=torch.uint8)
            memory[ahead : ahead + len(residual.content)] = residual.content
            out = memory[: 2 * weight.numel()].view(BF16).view(rows, columns)
            decode_into(out, memory[ahead : ahead + len(residual.content)], codes, scales, group_size)
            assert torch.equal(patterns(out), patterns(weight))


def test_rows_that_lie_apart_and_at_odd_addresses(variant: str) -> None:
    weight = torch.randn(5, 100).to(BF16)
    codes, scales = quantise(weight, 32)
    apart = torch.full((5, 80), 0xEE, dtype=torch.uint8)[:, : codes.shape[1]]
    apart.copy_(codes)
    content = encode(weight, codes, scales, 32).content
    out = misaligned(torch.zeros_like(weight))
    decode_into(out, misaligned(content), apart, scales, 32)
    assert torch.equal(patterns(out), patterns(weight))
    with pytest.raises(ValueError, match="rows without gaps"):
        decode_into(torch.zeros(100, 5, dtype=BF16).T, content, codes, scales, 32)


def test_a_residual_that_ends_early_is_refused(variant: str) -> None:
    weight = torch.randn(4, 70).to(BF16)
    weight[-1] = 0
    weight[-1, 0] = 1
    codes, scales = quantise(weight, 64)
    content = encode(weight, codes, scales, 64).content
    for length in (0, 1, 69, len(content) // 2, len(content) - 140, len(content) - 2, len(content) - 1):
        with pytest.raises(ValueError, match="ends before its matrix is whole"):
            decode_into(torch.zeros_like(weight), content[:length].clone(), codes, scales, 64)


def test_a_changed_byte_shows(variant: str) -> None:
    weight = torch.randn(3, 50).to(BF16)
    codes, scales = quantise(weight, 32)
    residual = encode(weight, codes, scales, 32)
    for at in range(len(residual.content)):
        changed = residual.content.clone()
        changed[at] ^= 0x41
        try:
            found = decode_into(torch.zeros_like(weight), changed, codes, scales, 32)
        except ValueError:
            continue
        assert found != (len(residual.content), residual.check), at


def test_variants_agree_on_what_is_no_residual(native_variant: str) -> None:
    """Any bytes are a residual of something, and of the same thing to each of them."""
    codes, scales = quantise(torch.randn(4, 75), 32)
    content = torch.randint(0, 256, (1000,), dtype=torch.uint8)
    results = []
    for choice in (native_variant, "torch"):
        native.use(choice)
        out = torch.zeros(4, 75, dtype=BF16)
        results.append((decode_into(out, content, codes, scales, 32), patterns(out).tolist()))
    assert results[0] == results[1]
