"""The memory of the slots: one allocation, cut evenly."""

import ctypes
import mmap

import torch

from smoe.core.pages import PAGE_BYTES
from smoe.kernels import alloc_huge

_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
POISON_BYTE = 0xFF
"""Sixteen or thirty-two set bits are a NaN in bf16 and fp32, so whatever is computed from a stale slot shows."""


class Arena:
    """`num_slots` times `slot_bytes` (whole pages), page-aligned. With `poison`, `poison(slot)` fills with NaN."""

    def __init__(self, num_slots: int, slot_bytes: int, *, poison: bool = False) -> None:
        self.num_slots, self.slot_bytes = num_slots, slot_bytes
        self.nbytes = num_slots * slot_bytes
        self._bytes = alloc_huge(self.nbytes)
        assert slot_bytes % PAGE_BYTES == 0
        assert self._bytes.data_ptr() % PAGE_BYTES == 0
        self._buffer = self._bytes.numpy().data
        self._poison = poison
        for slot in range(num_slots):
            self.poison(slot)

    @property
    def whole(self) -> torch.Tensor:
        """uint8 view of all slots."""
        return self._bytes

    def tensor(self, slot: int) -> torch.Tensor:
        """uint8 view of the slot."""
        return self._bytes[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]

    def buffer(self, slot: int) -> memoryview:
        """The same bytes, for reading into."""
        return self._buffer[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]

    def release(self, slot: int) -> None:
        """Gives the memory of a slot that is nobody's back to the system; used again, it is taken again."""
        if self._poison:
            self.poison(slot)
        else:
            self._give_back(slot * self.slot_bytes, self.slot_bytes)

    def close(self) -> None:
        """Gives all memory back at once, whoever still holds a view of it; nobody uses one again."""
        self._give_back(0, self.nbytes)

    def _give_back(self, offset: int, nbytes: int) -> None:
        if _madvise(self._bytes.data_ptr() + offset, nbytes, mmap.MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), "madvise of expert memory")

    def poison(self, slot: int) -> None:
        """In debug mode fills the slot with NaN bytes; else does nothing. Its contents must be nobody's."""
        if self._poison:
            self.tensor(slot).fill_(POISON_BYTE)
