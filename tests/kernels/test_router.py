"""Top-k of a softmax: values, ties, rows that are not finite."""

import pytest
import torch

from smoe.kernels import RMSNorm, SoftmaxRouter, topk_softmax
from smoe.kernels.router import topk_softmax_ref
from tests.kernels.support import F64, assert_close


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("t", "e", "k"),
    [(1, 64, 8), (5, 60, 4), (3, 1, 1), (2, 300, 300), (400, 128, 8)],  # tails, k = 1, k = E, two threads
)
def test_topk_softmax(variant: str, t: int, e: int, k: int, normalize: bool) -> None:
    logits = torch.randn(t, e) * 3
    ids, weights = topk_softmax(logits, k, normalize)
    assert ids.dtype is torch.int32
    expected = logits.to(F64).softmax(-1).sort(-1, descending=True)
    assert torch.equal(ids.long(), expected.indices[:, :k])
    top = expected.values[:, :k]
    assert_close(weights, top / top.sum(-1, keepdim=True) if normalize else top, torch.float32)


def test_ties_go_to_the_lowest_id(variant: str) -> None:
    logits = torch.zeros(2, 40)
    logits[1, [39, 20, 3]] = 1.0
    ids, _ = topk_softmax(logits, 5, True)
    assert ids.tolist() == [[0, 1, 2, 3, 4], [3, 20, 39, 0, 1]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("everywhere", [False, True])
def test_rows_that_are_not_finite_keep_ids_in_range(variant: str, bad: float, everywhere: bool) -> None:
    logits = torch.randn(3, 50)
    logits[1, slice(None) if everywhere else 7] = bad
    ids, weights = topk_softmax(logits, 50, True)
    assert ids.sort(-1).values.tolist() == [list(range(50))] * 3
    expected = topk_softmax_ref(logits, 50, True)
    assert torch.equal(weights.isnan(), expected[1].isnan())
    assert torch.equal(ids[[0, 2]], expected[0][[0, 2]])


def test_k_out_of_range(variant: str) -> None:
    for k in (0, 9):
        with pytest.raises(ValueError, match=f"k={k} of 8"):
            topk_softmax(torch.randn(1, 8), k, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 400])  # 400: each of the three runs on both threads
def test_norm_logits_and_choice_in_one_call_are_bitwise_the_three(variant: str, rows: int, dtype: torch.dtype) -> None:
    norm = RMSNorm(torch.rand(70) + 0.5, 1e-5)
    router = SoftmaxRouter(torch.randn(33, 70).bfloat16(), torch.randn(33), norm, 5, True)
    x = torch.randn(rows, 70).to(dtype)
    for fused, single in zip(router(x), router.reference(x), strict=True):
        assert fused.dtype == single.dtype
        assert torch.equal(fused, single)
