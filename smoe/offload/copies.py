"""Who copies bytes from host memory into slots, and how one knows that they are there."""

import ctypes
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

from smoe.offload.store import Read


class Copy(Protocol):
    """A copy begun; its source and its part of the slot are the engine's until `wait` returns."""

    def wait(self) -> None: ...


class CopyEngine(Protocol):
    """Knows where slots are: in this process's memory, or on a device."""

    chunk_bytes: int
    """Transfers are cut into copies of this size, so that an urgent one gets between those of another."""

    small_bytes: int
    """Up to here the thread that asks for a transfer copies itself: waking another one takes longer."""

    reaches_slots: bool
    """Whether slots have an address in this process, so that files can be read into them."""

    def locked(self, memory: torch.Tensor) -> AbstractContextManager[object]:
        """While it is open, `memory` of the host (from a page boundary on) stays in place, as far as copies need it."""
        ...

    def used(self, slot: int) -> None:
        """By the thread that computes: whatever it has begun so far may read the slot. Copies into it come after."""
        ...

    def begin(self, read: Read, start: int, source: torch.Tensor) -> Copy:
        """Copies `source`, contiguous uint8, to byte `start` of the slot of `read`."""
        ...


class MemoryCopies:
    """Plain copies by the thread that asks, without the interpreter lock: they have ended when `begin` returns."""

    chunk_bytes, small_bytes, reaches_slots = 4 << 20, 256 << 10, True

    def locked(self, memory: torch.Tensor) -> AbstractContextManager[object]:
        return nullcontext()

    def used(self, slot: int) -> None:
        """Computing has ended when the thread that computes says so."""

    def begin(self, read: Read, start: int, source: torch.Tensor) -> Copy:
        target = torch.frombuffer(read.memory, dtype=torch.uint8)
        assert start + source.nbytes <= target.nbytes
        ctypes.memmove(target.data_ptr() + start, source.data_ptr(), source.nbytes)
        return _ENDED


class _Ended:
    def wait(self) -> None:
        return


_ENDED = _Ended()
