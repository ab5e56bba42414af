"""Every test of this folder runs on the torch twins, on the Triton kernels in their interpreter, and on a GPU.

The interpreter is chosen before Triton is imported, so it has a process of its own (test_interpreter.py).
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from smoe.kernels.routing.launch import INTERPRETED
from tests.kernels.support import poison_empty

ON_GPU = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
)
F16, F32, BF16 = torch.float16, torch.float32, torch.bfloat16


KERNEL_PATHS = ["interpreter" if INTERPRETED else ON_GPU]
"""For what holds of kernels and not of their twins."""


@pytest.fixture(params=KERNEL_PATHS if INTERPRETED else ["twin", *KERNEL_PATHS])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which path the calls of a test take; what they allocate is poisoned."""
    poison_empty(monkeypatch)
    return str(request.param)


@pytest.fixture
def put(path: str) -> Callable[[Tensor], Tensor]:
    """Moves a tensor to where the path computes."""
    return lambda tensor: tensor.to("cuda" if path == "cuda" else "cpu")


@pytest.fixture(params=[F32, F16] if INTERPRETED else [F32, BF16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """The interpreter's bf16 is wrong, so there fp16 stands for the narrow types."""
    return request.param
