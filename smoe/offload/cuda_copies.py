"""Copies into slots on a CUDA device, on a stream of their own beside the one that computes."""

from typing import Any

import torch

from smoe.offload.copies import Copy
from smoe.offload.store import Read


class CudaCopies:
    """A CopyEngine (smoe.offload.copies). A copy begins after the last use of its slot; whoever computes from the slot
    does so after `wait`. Copies overlap with computing as far as their source is pinned.
    """

    chunk_bytes, small_bytes, reaches_slots = 64 << 20, 0, False

    def __init__(self, slots: torch.Tensor) -> None:
        """`slots` [S, bytes] uint8 on the device."""
        self._slots = slots
        self._stream: torch.cuda.Stream = torch.cuda.Stream(slots.device)  # type: ignore[no-untyped-call]
        self._last_use: dict[int, torch.cuda.Event] = {}

    def locked(self, memory: torch.Tensor) -> "Pinned":
        return Pinned(memory)

    def used(self, slot: int) -> None:
        event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._slots.device))
        self._last_use[slot] = event

    def begin(self, read: Read, start: int, source: torch.Tensor) -> Copy:
        slot = read.view.slot
        last_use = self._last_use.get(slot)
        if last_use is not None:
            self._stream.wait_event(last_use)
        with torch.cuda.stream(self._stream):
            self._slots[slot, start : start + source.nbytes].copy_(source, non_blocking=True)
            event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return _Recorded(event)


class _Recorded:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()


class Pinned:
    """While it is open, `memory` (of the host, at a page boundary) is locked in place for copies by the device."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory

    def __enter__(self) -> None:
        _check(_cudart().cudaHostRegister(self._memory.data_ptr(), self._memory.nbytes, 0))

    def __exit__(self, *_: object) -> None:
        _check(_cudart().cudaHostUnregister(self._memory.data_ptr()))


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _check(code: Any) -> None:
    if int(code) != 0:
        raise RuntimeError(f"locking memory for copies by the device: CUDA error {int(code)}")
