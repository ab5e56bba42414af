"""When the Triton kernels run, and how they start. Triton is loaded at the first launch.

A body is a plain function at module level, so that importing it needs no Triton. It finds `tl` in its module's globals,
which the first launch puts there. Annotations are names of `tl` and, by the future import, not evaluated before: Triton
looks them up in the source. What bodies share is a `device_function`, compiled with the body that names it.
"""

import inspect
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

# Triton reads the variable when it is imported; a change later would be a mixture.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
MAX_BLOCK = 4096
# Parameters that change from step to step: a kernel of its own where one is 1 or a multiple of 16 would stall a step.
VARYING = frozenset({"num_entries", "num_rows", "num_values", "chunk"})


_device_functions: set[Callable[..., Any]] = set()


def device_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function that bodies call by its own name."""
    _device_functions.add(function)
    return function


def use_triton(tensor: Tensor) -> bool:
    """Whether a kernel (on a GPU, or in Triton's interpreter) or the torch twin works on this tensor."""
    return tensor.is_cuda or INTERPRETED


def launch(body: Callable[..., None], grid: tuple[int, ...], on: Tensor, *args: Any, **constants: Any) -> None:
    """Starts the body on the device of `on`, unless the grid is empty."""
    if 0 in grid:
        return
    # Only tl.fma fuses, as in the C library: what the compiler would fuse beside it depends on its version.
    constants["enable_fp_fusion"] = False
    if on.is_cuda:
        with torch.cuda.device(on.device):
            compiled(body)[grid](*args, **constants)
    else:
        compiled(body)[grid](*args, **constants)


def compiled(body: Callable[..., None]) -> Any:
    """The body as a Triton kernel."""
    return _jit(body)


@cache
def _jit(body: Callable[..., None]) -> Any:
    import triton
    import triton.language as tl

    names = body.__globals__
    names["tl"] = tl
    for name in body.__code__.co_names:
        if inspect.isfunction(names.get(name)) and names[name] in _device_functions:
            names[name] = _jit(names[name])
    varying = [name for name in inspect.signature(body).parameters if name in VARYING]
    return triton.jit(body, do_not_specialize=varying)


def block_of(size: int, largest: int = MAX_BLOCK) -> int:
    """The power of two that covers `size`, at most `largest`."""
    return min(1 << max(0, size - 1).bit_length(), largest)


def blocks(size: int, block: int) -> int:
    """Blocks that cover `size`."""
    return -(-size // block)
