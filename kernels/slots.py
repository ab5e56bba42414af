"""What tables of experts share, whatever form the weights have. Letters: T rows, K choices, D hidden, F ffn."""

import ctypes
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor

from smoe.kernels import native
from smoe.kernels.native import DTYPE_CODES
from smoe.kernels.norm import RMSNorm
from smoe.kernels.twin import matmul

Held = TypeVar("Held")
Activation = Literal["silu", "gptoss"]
MAX_CHOICES = 1024
SMALL_MACS = 1 << 20  # multiply-adds of one matrix up to which a call keeps the interpreter lock
WORDS = 15  # of an Expert in common.h: weight[3], bias[3], scale[3], ld[3], wtype, btype, group


class ExpertTensors(NamedTuple):
    """One expert: gate [F, D], up [F, D], down [D, F], biases [F], [F], [D]; one dtype, unit column stride."""

    gate: Tensor
    up: Tensor
    down: Tensor
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None


class SlotTable(Generic[Held]):
    """Which weights lie in which slot: views, and raw pointers for the C library.

    Weights are used where they are, at any multiple of their element size. `set` and `clear` must not run while a call
    is using that slot.
    """

    def __init__(
        self,
        num_slots: int,
        hidden: int,
        ffn: int,
        act: Activation = "silu",
        alpha: float = 1.702,
        limit: float = 7.0,
        norm: RMSNorm | None = None,
    ) -> None:
        """alpha and limit belong to "gptoss"; norm is applied to x before the experts."""
        if act not in get_args(Activation):
            raise ValueError(f"ExpertTable: act={act!r} is unknown: expected one of {', '.join(get_args(Activation))}")
        self.num_slots, self.hidden, self.ffn = num_slots, hidden, ffn
        self.act, self.alpha, self.limit, self.norm = act, alpha, limit, norm
        self._tensors: list[Held | None] = [None] * num_slots
        self._words = (ctypes.c_int64 * (num_slots * WORDS))()
        self.struct = native.Table(
            *(ctypes.addressof(self._words), num_slots, hidden, ffn),
            *(native.Norm() if norm is None else norm.struct, ("silu", "gptoss").index(act), alpha, limit),
        )
        self.handle = native.address(self.struct)
        self._entries = native.entries("moe", native.library())
        self._small_pairs = SMALL_MACS // (hidden * ffn)
        self._num_foreign = 0  # slots that hold tensors which the library cannot read
        self.changed: set[int] = set()  # slots set or cleared since whoever keeps `form` emptied it
        self.form: Any = None  # what kernels on another device keep of the table

    def clear(self, slot: int) -> None:
        """Drops the slot's tensors, if any."""
        if not 0 <= slot < self.num_slots:
            raise IndexError(f"slot {slot} of a table of {self.num_slots}")
        if self._tensors[slot] is not None and not self._words[slot * WORDS]:
            self._num_foreign -= 1
        self._tensors[slot] = None
        self._words[slot * WORDS] = 0
        self.changed.add(slot)

    def tensors(self, slot: int) -> Held:
        """What the slot was set to; LookupError if it is empty."""
        if not 0 <= slot < self.num_slots:
            raise IndexError("a slot lies outside of the expert table")
        held = self._tensors[slot]
        if held is None:
            raise LookupError("a slot of the expert table is empty")
        return held

    def peek(self, slot: int) -> Held | None:
        """As `tensors`, None for an empty slot."""
        return self._tensors[slot]

    def weights(self, slot: int) -> ExpertTensors:
        """Of the slot, as the twin computes with them."""
        raise NotImplementedError

    def entry(self, x_TD: Tensor, slots_TK: Tensor) -> native.Function | None:
        """The native call for these pairs, if there is one; ValueError for a wrong size."""
        (num_rows, width), (num_slot_rows, num_choices) = x_TD.shape, slots_TK.shape
        if width != self.hidden:
            raise ValueError(f"moe: x has {width} columns, expected {self.hidden}")
        if num_slot_rows != num_rows or num_choices > MAX_CHOICES or slots_TK.dtype is not torch.int32:
            raise ValueError(f"moe: slots must be i32 [{num_rows}, K <= {MAX_CHOICES}]")
        if self._entries is None or self._num_foreign or x_TD.dtype not in DTYPE_CODES or not x_TD.is_cpu:
            return None
        return self._entries[num_rows * num_choices > self._small_pairs]

    def apply_ref(self, slot: int, x_TD: Tensor) -> Tensor:
        """The torch twin of one expert: fp32 [T, D], the intermediate rounded to x's dtype."""
        e = self.weights(slot)
        return _biased(matmul(_activated(self, e, x_TD), e.down), e.down_bias)

    def activated_ref(self, slot: int, x_TD: Tensor) -> Tensor:
        """Its first half: [T, F] of x's dtype."""
        return _activated(self, self.weights(slot), x_TD)

    def _store(self, slot: int, held: Held, words: list[ctypes.c_int64 | int] | None) -> None:
        """`words` of an Expert; None where the library cannot read the tensors."""
        self.clear(slot)
        self._tensors[slot] = held
        if words is None:
            self._num_foreign += 1
        else:
            self._words[slot * WORDS : (slot + 1) * WORDS] = words


def gated(gate: Tensor, up: Tensor, act: Activation, alpha: float, limit: float) -> Tensor:
    """act(gate) * up of fp32 tensors, as every expert computes it."""
    if act == "gptoss":
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (up + 1.0) * (gate * torch.sigmoid(alpha * gate))
    return torch.nn.functional.silu(gate) * up


def _activated(table: SlotTable[Any], e: ExpertTensors, x_TD: Tensor) -> Tensor:
    gate_TF, up_TF = _biased(matmul(x_TD, e.gate), e.gate_bias), _biased(matmul(x_TD, e.up), e.up_bias)
    return gated(gate_TF, up_TF, table.act, table.alpha, table.limit).to(x_TD.dtype)


def _biased(y_TN: Tensor, bias_N: Tensor | None) -> Tensor:
    return y_TN if bias_N is None else y_TN + bias_N.float()
