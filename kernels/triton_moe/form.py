"""What kernels on a device know of a table of experts. Letters: S slots, W words of a slot."""

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from smoe.kernels.slots import SlotTable

ALIGNMENT = 16  # bytes of the widest load


class Kind(NamedTuple):
    """What one launch takes for granted of every slot."""

    dtype: torch.dtype
    device: torch.device
    strides: tuple[int, ...]  # between rows, of each matrix
    biases: tuple[bool, ...]  # which of gate, up and down have one


class DeviceForm:
    """`words_WS` i64, brought up to date by `current`: the address of each tensor of a slot, and 1 if there are any. A
    slot without an expert has the addresses of another, so that reading them does no harm.

    Slots that were set or cleared are copied to the device in the order of its stream, and nobody waits; in the capture
    of a CUDA graph that must not be, so call `current` before.
    """

    def __init__(self, table: SlotTable[Any]) -> None:
        table.changed = set(range(table.num_slots))
        self._table = table
        self._words_SW: list[list[int]] = [[]] * table.num_slots
        self._kinds: Counter[Kind] = Counter()
        self._held: dict[int, tuple[Kind, bool]] = {}
        self._num_unaligned = 0
        self.words_WS = torch.empty(0, dtype=torch.int64)

    @property
    def aligned(self) -> bool:
        """Whether every row of weights or codes begins at a multiple of ALIGNMENT."""
        return not self._num_unaligned

    def current(self, device: torch.device) -> Kind | None:
        """Of all slots, if they are of one kind and on this device; None: one launch cannot take them."""
        changed = self._table.changed
        if changed:
            for slot in changed:
                self._note(slot)
            changed.clear()
            if len(self._kinds) == 1:
                self.words_WS = self._filled().to(device, non_blocking=True)
        if len(self._kinds) != 1:
            return None
        (kind,) = self._kinds
        return kind if kind.device == device and self.words_WS.device == device else None

    def sample(self) -> Tensor:
        """A gate of some slot: it tells a kernel the type behind an address."""
        gate: Tensor = self._table.tensors(next(iter(self._held))).gate
        return gate

    def _note(self, slot: int) -> None:
        if slot in self._held:
            kind, aligned = self._held.pop(slot)
            self._num_unaligned -= not aligned
            self._kinds[kind] -= 1
            self._kinds += Counter()  # drops a kind that no slot has
        tensors = self._table.peek(slot)
        if tensors is None:
            return
        matrices = [tensor for tensor in tensors if tensor is not None and tensor.ndim == 2]
        strides = tuple(matrix.stride(0) for matrix in matrices)
        gate = tensors.gate
        kind = Kind(gate.dtype, gate.device, strides, tuple(bias is not None for bias in tensors[-3:]))
        wide = [matrix for matrix in matrices if matrix.dtype is gate.dtype]
        numbers = (number for m in wide for number in (m.data_ptr(), m.stride(0) * m.element_size()))
        self._held[slot] = kind, all(number % ALIGNMENT == 0 for number in numbers)
        self._num_unaligned += not self._held[slot][1]
        self._kinds[kind] += 1
        self._words_SW[slot] = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]

    def _filled(self) -> Tensor:
        some = self._words_SW[next(iter(self._held))]
        words = [[*self._words_SW[s], 1] if s in self._held else [*some, 0] for s in range(self._table.num_slots)]
        return torch.tensor(words, dtype=torch.int64).T.contiguous()


def form_of(table: SlotTable[Any]) -> DeviceForm:
    """The table's, made at the first call."""
    if table.form is None:
        table.form = DeviceForm(table)
    form: DeviceForm = table.form
    return form
