"""Compiles for a GPU what a call would launch; no GPU is needed for that."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from smoe.kernels.routing import launch
from smoe.kernels.routing.launch import VARYING, compiled

TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int16: "i16",
    torch.uint8: "u8",
    torch.bool: "i1",
    torch.int64: "i64",
}
ALIGNED = [["tt.divisibility", 16]]


class Compiler:
    """Stands where kernels start: compiles what would run, and notes what came out."""

    def __init__(self, body: Callable[..., None], capability: int, made: list[str]) -> None:
        self.body, self.capability, self.made = body, capability, made

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(size > 0 for size in grid)
        return self.compile

    def compile(
        self, *args: Any, num_warps: int = 4, num_stages: int = 3, enable_fp_fusion: bool, **constants: Any
    ) -> None:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        function = compiled(self.body)
        named = dict(zip(function.arg_names, args, strict=False))
        # As a launch does: a kernel of its own for ints that are 1, and what is known of pointers and multiples of 16.
        fixed = {n: a for n, a in named.items() if isinstance(a, int) and n not in VARYING}
        constants |= {n: 1 for n, a in fixed.items() if a == 1}
        wide = [i for i, (n, a) in enumerate(named.items()) if isinstance(a, Tensor) or fixed.get(n, 1) % 16 == 0]
        types = {n: _type(a) for n, a in named.items()}
        signature = types | dict.fromkeys(constants, "constexpr")
        options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": enable_fp_fusion}
        source = ASTSource(function, signature, constants, {(i,): ALIGNED for i in wide})
        target = GPUTarget("cuda", self.capability, 32)
        self.made.append(triton.compile(source, target=target, options=options).asm["ptx"])


def _type(argument: object) -> str:
    if isinstance(argument, Tensor):
        return f"*{TYPES.get(argument.dtype, 'i32')}"
    return "fp32" if isinstance(argument, float) else "i32"


def compile_into(made: list[str], capability: int, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """From here on launches compile, and nothing runs."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    monkeypatch.setattr(launch, "INTERPRETED", True)
    monkeypatch.setattr(launch, "compiled", lambda body: Compiler(body, capability, made))
