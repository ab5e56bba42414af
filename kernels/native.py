"""The C library: finding, loading and choosing it, and the structures it reads.

SMOE_CPU_KERNELS=auto|avx512|avx2|torch decides once, at the first use; `use` decides anew (for objects built later).
"""

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Callable
from ctypes import c_float, c_int, c_int32, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from smoe.kernels.cpu.build import LIBRARY

Function = Callable[..., int]
CHOICES = ("auto", "avx512", "avx2", "torch")
MAX_THREADS = 64
LEVELS = {"avx2": 1, "avx512": 2}
DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}
ERRORS: dict[int, tuple[type[Exception], str]] = {
    -1: (MemoryError, "no memory for the scratch space of a kernel"),
    -2: (IndexError, "a slot lies outside of the expert table"),
    -3: (LookupError, "a slot of the expert table is empty"),
    -4: (ValueError, "a residual ends before its matrix is whole"),
}


class Norm(ctypes.Structure):
    """Mirror of Norm in common.h; weight None: no norm."""

    _fields_ = [("weight", c_void_p), ("eps", c_float), ("plus_one", c_int32)]


class Linear(ctypes.Structure):
    """Mirror of Linear in common.h."""

    _fields_ = [
        *(("weight", c_void_p), ("bias", c_void_p), ("ld", c_int64), ("n", c_int64), ("k", c_int64)),
        *(("norm", Norm), ("wtype", c_int32)),
    ]


class Table(ctypes.Structure):
    """Mirror of Table in common.h."""

    _fields_ = [
        *(("experts", c_void_p), ("num_slots", c_int64), ("hidden", c_int64), ("ffn", c_int64)),
        *(("norm", Norm), ("act", c_int32), ("alpha", c_float), ("limit", c_float)),
    ]


class Attention(ctypes.Structure):
    """Mirror of Attention in common.h."""

    _fields_ = [
        *(("num_heads", c_int64), ("num_kv_heads", c_int64), ("head_dim", c_int64), ("rotary_dim", c_int64)),
        *(("window", c_int64), ("q_norm", Norm), ("k_norm", Norm), ("sinks", c_void_p), ("scale", c_float)),
    ]


class Mla(ctypes.Structure):
    """Mirror of Mla in common.h."""

    _fields_ = [
        *(("num_heads", c_int64), ("latent", c_int64), ("nope", c_int64), ("rope", c_int64), ("value", c_int64)),
        *(("key_up", c_void_p), ("value_up", c_void_p), ("norm", Norm), ("wtype", c_int32), ("scale", c_float)),
    ]


class Delta(ctypes.Structure):
    """Mirror of Delta in common.h."""

    _fields_ = [
        *(("key_heads", c_int64), ("value_heads", c_int64), ("key_dim", c_int64), ("value_dim", c_int64)),
        *(("taps", c_int64), ("conv", c_void_p), ("rate", c_void_p), ("dt_bias", c_void_p), ("norm", Norm)),
    ]


_P, _I, _L = c_void_p, c_int, c_int64
# After the thread count, which leads every list. Order as in common.h.
SIGNATURES: dict[str, tuple[type, ...]] = {
    "norm": (_P, _P, _I, _L, _L, _P),
    "linear": (_P, _P, _I, _L, _P, _P, _I),
    "attention": (_P, _P, _I, _L, _P, _P, _P, _P, _P, _P, _P),
    "topk": (_P, _L, _L, _L, _I, _P, _P),
    "route": (_P, _P, _P, _I, _L, _L, _I, _P, _P, _P, _P),
    "moe": (_P, _P, _I, _L, _L, _P, _P, _P, _P, _P, _P, _I),
    "combine": (_P, _L, _L, _L, _P, _P, _P, _I, _P, _I),
    "mla": (_P, _P, _P, _I, _L, _P, _P, _P, _P, _P, _P, _P),
    "delta": (_P, _P, _I, _L, _P, _L, _P, _P, _P),
    "quantise": (_P, _I, _L, _L, _L, _P, _I, _P, _P),
    "residual": (_P, _L, _P, _L, _P, _L, _L, _L, _P, _P),
    "residual_of": (_P, _P, _L, _P, _L, _L, _L, _P, _P, _P),
    "stream": (_P, _L, _P),
}


class Library:
    """The loaded library. Small calls keep the interpreter lock: giving it up costs more than they take."""

    def __init__(self, path: Path) -> None:
        self.released, self.held = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        for handle in (self.released, self.held):
            for name, arguments in SIGNATURES.items():
                function = getattr(handle, f"smoe_{name}")
                function.argtypes, function.restype = (c_int, *arguments), c_int
        self.level: int = self.released.smoe_cpu_level()
        self._start_workers()

    def _start_workers(self) -> None:
        """One thread a core beside the caller's. They sleep in the library, and end with the process; a child made by
        fork has none, and computes on one thread."""
        count = min(len(os.sched_getaffinity(0)), MAX_THREADS) - 1
        for index in range(count):
            run = self.released.smoe_worker
            threading.Thread(target=run, args=(index,), name=f"smoe-cpu-{index + 1}", daemon=True).start()
        self.released.smoe_set_workers(count)
        os.register_at_fork(after_in_child=lambda: self.released.smoe_set_workers(0))


_library: Library | None = None
_active: Library | None = None
_chosen: str | None = None


def use(choice: str) -> None:
    """Selects the variant for objects built from now on; ValueError if it is unknown or does not run here."""
    global _library, _active, _chosen
    if choice not in CHOICES:
        raise ValueError(f"SMOE_CPU_KERNELS={choice!r} is unknown: expected one of {', '.join(CHOICES)}")
    runs = sys.platform == "linux" and platform.machine() == "x86_64" and LIBRARY.exists()
    if choice != "torch" and runs and _library is None:
        _library = Library(LIBRARY)
    level = _library.level if _library is not None else 0
    if LEVELS.get(choice, 0) > level:
        raise ValueError(f"SMOE_CPU_KERNELS={choice} does not run on this machine")
    _active = _library if choice != "torch" and level else None
    if _active is not None:
        _active.released.smoe_use_level(LEVELS.get(choice, level))
    _chosen = choice


def library() -> Library | None:
    """The library in use; None: the torch twins."""
    if _chosen is None:
        use(os.environ.get("SMOE_CPU_KERNELS", "auto"))
    return _active


def usable(*tensors: Tensor | None) -> Library | None:
    """The library in use if it can read all these tensors: fp32 or bf16, in host memory."""
    fit = all(t is None or (t.device.type == "cpu" and t.dtype in DTYPE_CODES) for t in tensors)
    return library() if fit else None


def entries(name: str, lib: Library | None) -> tuple[Function, Function] | None:
    """One operation of a library: (for small calls, keeps the interpreter lock; for large ones, gives it up)."""
    return None if lib is None else (getattr(lib.held, f"smoe_{name}"), getattr(lib.released, f"smoe_{name}"))


def fail(code: int) -> None:
    """Raises what a negative return code stands for."""
    kind, text = ERRORS[code]
    raise kind(text)


def describe() -> str:
    """Which kernels run on the CPU, for `doctor` and result files."""
    if library() is None or _library is None:
        return "torch"
    return _chosen if _chosen in LEVELS else {1: "avx2", 2: "avx512"}[_library.level]


def address(struct: ctypes.Structure) -> int:
    """Address of a structure; its owner keeps it alive."""
    return ctypes.addressof(struct)
