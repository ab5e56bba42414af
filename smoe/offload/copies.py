"""Who copies bytes from host memory into slots, and how one knows that they are there."""

import ctypes
from typing import Protocol

import torch


class Copy(Protocol):
    """A copy begun; both its memories are the engine's until `wait` returns."""

    def wait(self) -> None: ...


class CopyEngine(Protocol):
    """`source` and `target` are uint8, contiguous, of one size."""

    chunk_bytes: int
    """Transfers are cut into copies of this size, so that an urgent one gets between those of another."""

    small_bytes: int
    """Up to here the thread that asks for a transfer copies itself: waking another one takes longer."""

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> Copy: ...


class MemoryCopies:
    """Plain copies by the thread that asks, without the interpreter lock: they have ended when `begin` returns."""

    chunk_bytes, small_bytes = 4 << 20, 256 << 10

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> Copy:
        assert target.nbytes == source.nbytes
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
        return _ENDED


class _Ended:
    def wait(self) -> None:
        return


_ENDED = _Ended()
