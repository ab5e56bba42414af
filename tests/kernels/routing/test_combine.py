"""The weighted sum on a device: the bits of the C library, whose order and rounding it shares."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from smoe.kernels import moe_combine, native
from smoe.kernels.combine import moe_combine_ref
from smoe.kernels.routing import launch
from tests.kernels.support import assert_close

Put = Callable[[Tensor], Tensor]
F32, BF16 = torch.float32, torch.bfloat16
SHAPES = [  # (T, K, E, D)
    (1, 1, 1, 1),  # smallest
    (9, 3, 7, 70),  # no power of two; choices that are left out
    (0, 2, 4, 16),  # no rows
    (2, 8, 64, 1030),  # a block and some columns
    (2, 17, 17, 20),  # all experts chosen
]


def case(t: int, k: int, e: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.stack([torch.randperm(e)[:k] for _ in range(t)] or [torch.zeros(0, k)]).to(torch.int32)[:t]
    ids = ids.reshape(t, k).masked_fill((torch.rand(t, k) < 0.2) & torch.tensor(k > 1), -1)
    left_out = ids < 0  # what is left out is poison
    pairs = torch.randn(t, k, d).masked_fill(left_out[..., None], torch.nan)
    return pairs, ids, torch.rand(t, k).masked_fill(left_out, torch.nan)


def by_library(*args: object) -> Tensor:
    """What the C library computes; its additions are fused, like the device's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "INTERPRETED", False)
        return moe_combine(*args)  # type: ignore[arg-type]


@pytest.mark.skipif(native.library() is None, reason="no C library on this machine")
@pytest.mark.parametrize(("t", "k", "e", "d"), SHAPES)
def test_bits_of_the_library(put: Put, path: str, t: int, k: int, e: int, d: int) -> None:
    pairs, ids, weights = case(t, k, e, d)
    on_device = put(pairs), put(ids), put(weights)
    for dtype in (F32, BF16) if path == "cuda" else (F32,):
        rest = torch.randn(t, d).to(dtype)
        assert torch.equal(moe_combine(*on_device, dtype).cpu(), by_library(pairs, ids, weights, dtype))
        assert torch.equal(
            moe_combine(*on_device, dtype, put(rest)).cpu(), by_library(pairs, ids, weights, dtype, rest)
        )


@pytest.mark.parametrize(("t", "k", "e", "d"), SHAPES)
def test_near_the_twin(put: Put, t: int, k: int, e: int, d: int) -> None:
    """The twin rounds products; where the weights are powers of two there is nothing to round."""
    pairs, ids, weights = case(t, k, e, d)
    made = moe_combine(put(pairs), put(ids), put(weights), F32).cpu()
    if t:
        assert_close(made, moe_combine_ref(pairs, ids, weights, F32), F32)
    exact = (2.0 ** torch.randint(-3, 3, (t, k))).masked_fill(ids < 0, torch.nan)
    made = moe_combine(put(pairs), put(ids), put(exact), F32).cpu()
    assert torch.equal(made, moe_combine_ref(pairs, ids, exact, F32))


def test_sum_runs_in_ascending_expert_id(put: Put) -> None:
    """1e8 + 1 - 1e8 depends on the order; the choices arrive in every order, the sum must not."""
    value = {3: 1e8, 70_000: 1.0, 2_000_000_000: -1e8}  # ascending: (1e8 + 1) - 1e8 = 0 in fp32
    a, b, c = value
    for order in ((a, b, c), (c, b, a), (b, a, c), (b, c, a), (a, c, b)):
        pairs = torch.tensor([value[i] for i in order]).view(1, 3, 1).expand(1, 3, 20).contiguous()
        ids = torch.tensor([order], dtype=torch.int32)
        assert bool((moe_combine(put(pairs), put(ids), put(torch.ones(1, 3)), F32) == 0).all()), order


def test_equal_ids_keep_the_order_of_choices(put: Put) -> None:
    pairs = torch.tensor([1e8, 1.0, -1e8]).view(1, 3, 1)
    ids = torch.full((1, 3), 5, dtype=torch.int32)
    assert float(moe_combine(put(pairs), put(ids), put(torch.ones(1, 3)), F32)) == 0.0
