"""The torch twins on a CUDA device agree with the same twins on the CPU in float32."""

import pytest
import torch

from smoe.kernels import Attention, ExpertTable, ExpertTensors, Linear, RMSNorm, Rows, moe, topk_softmax
from tests.kernels.support import TOLERANCE, errors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
DTYPES = [torch.float32, torch.bfloat16]
HIDDEN, FFN = 96, 40  # not powers of two


def _close(actual: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype) -> None:
    worst, rms = errors(actual.cpu(), reference)
    # Tensor cores and another order of additions: ten times the table of equal arithmetic.
    assert worst < 10 * TOLERANCE[dtype][0]
    assert rms < 10 * TOLERANCE[dtype][1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 37])
def test_linear(dtype: torch.dtype, rows: int) -> None:
    x, weight = torch.randn(rows, HIDDEN).to(dtype), (torch.randn(FFN, HIDDEN) / 10).to(dtype)
    norm = torch.rand(HIDDEN).to(dtype) + 0.5
    on_gpu = Linear(weight.cuda(), norm=RMSNorm(norm.cuda(), 1e-6))(x.cuda())
    _close(on_gpu, Linear(weight, norm=RMSNorm(norm, 1e-6)).reference(x), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention(dtype: torch.dtype) -> None:
    heads, kv_heads, width, rows = 6, 2, 32, 9
    qkv = torch.randn(rows, (heads + 2 * kv_heads) * width).to(dtype)
    cos, sin = torch.rand(rows, width // 2), torch.rand(rows, width // 2)
    layout = (torch.tensor([0] * 5 + [16] * 4), torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3]))
    spans = ((0, 5, 0, 0), (5, 4, 16, 0))
    attention = Attention(heads, kv_heads, width, width, width**-0.5, window=3)
    caches = [torch.zeros(32, kv_heads, width, dtype=dtype) for _ in range(2)]
    reference = attention.reference(qkv, cos, sin, Rows(*layout, spans), *caches)
    rows_gpu = Rows(*(t.cuda() for t in layout), spans)
    caches_gpu = [torch.zeros_like(c, device="cuda") for c in caches]
    _close(attention(qkv.cuda(), cos.cuda(), sin.cuda(), rows_gpu, *caches_gpu), reference, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_experts(dtype: torch.dtype) -> None:
    tables = {device: ExpertTable(5, HIDDEN, FFN, act="silu") for device in ("cpu", "cuda")}
    for slot in range(5):
        shapes = ((FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN))
        parts = [(torch.randn(shape) / 10).to(dtype) for shape in shapes]
        for device, table in tables.items():
            table.set(slot, ExpertTensors(*(p.to(device) for p in parts), None, None, None))
    x = torch.randn(7, HIDDEN).to(dtype)
    ids, weights = topk_softmax(torch.randn(7, 5), 3, True)
    reference = moe(x, ids, ids, weights, tables["cpu"])
    _close(moe(x.cuda(), ids.cuda(), ids.cuda(), weights.cuda(), tables["cuda"]), reference, dtype)
