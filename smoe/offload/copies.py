"""Who copies bytes from host memory into slots, and how one knows that they are there."""

import ctypes
from typing import Protocol

import torch


class Copy(Protocol):
    """A copy begun; both its memories are the engine's until `wait` returns."""

    def wait(self) -> None: ...


class CopyEngine(Protocol):
    """One thread copies. `source` and `target` are uint8, contiguous, of one size."""

    chunk_bytes: int
    """Transfers are cut into copies of this size, so that an urgent one gets between those of another."""

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> Copy: ...


class MemoryCopies:
    """Plain copies by the thread that asks, without the interpreter lock: they have ended when `begin` returns."""

    chunk_bytes = 4 << 20

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> Copy:
        assert target.nbytes == source.nbytes
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
        return _ENDED


class _Ended:
    def wait(self) -> None:
        return


_ENDED = _Ended()
