"""Each kernel compiles for a GPU of this and of the last generation; no GPU is needed for that.

The interpreter takes what the compiler refuses: types that change in a loop, masks of the wrong shape, a fused
multiply-add of two types.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from smoe.kernels.routing import launch
from smoe.kernels.routing.bins import sort_by_bin
from smoe.kernels.routing.rows import gather_rows, scatter_rows

pytestmark = pytest.mark.skipif(launch.INTERPRETED, reason="compiles instead of interpreting")
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int16: "i16", torch.int64: "i64"}
X, IDS = torch.zeros(6, 40, dtype=torch.bfloat16), torch.zeros(6, 3, dtype=torch.int32)
CALLS: dict[str, Callable[[], object]] = {
    "sort": lambda: sort_by_bin(IDS, 5),
    "sort into chunks": lambda: sort_by_bin(IDS.short(), 5, 7),
    "gather": lambda: gather_rows(X, IDS[:, 0]),
    "scatter": lambda: scatter_rows(X, IDS[:, 0].long(), X.clone()),
}


class Compiler:
    """Stands where kernels start: compiles what would run, and notes what came out."""

    def __init__(self, body: Callable[..., None], capability: int, made: list[str]) -> None:
        self.body, self.capability, self.made = body, capability, made

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(size > 0 for size in grid)
        return self.compile

    def compile(self, *args: Any, num_warps: int = 4, enable_fp_fusion: bool, **constants: Any) -> None:
        import triton
        import triton.language as tl
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        self.body.__globals__["tl"] = tl
        function = triton.jit(self.body)
        types = [f"*{TYPES.get(a.dtype, 'i32')}" if isinstance(a, Tensor) else "i32" for a in args]
        signature = dict(zip(function.arg_names, types, strict=False)) | dict.fromkeys(constants, "constexpr")
        options = {"num_warps": num_warps, "enable_fp_fusion": enable_fp_fusion}
        source, target = ASTSource(function, signature, constants), GPUTarget("cuda", self.capability, 32)
        self.made.append(triton.compile(source, target=target, options=options).asm["ptx"])


@pytest.fixture(params=[80, 90])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What the calls of a test compiled."""
    made: list[str] = []
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(launch, "INTERPRETED", True)
    monkeypatch.setattr(launch, "compiled", lambda body: Compiler(body, int(request.param), made))
    return made


@pytest.mark.parametrize("name", CALLS)
def test_compiles(made: list[str], name: str) -> None:
    CALLS[name]()
    assert made
    assert all(".entry" in ptx for ptx in made)
