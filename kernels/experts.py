"""The table of expert weights by slot. Letters: D hidden, F ffn."""

import ctypes
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from smoe.kernels import native
from smoe.kernels.native import DTYPE_CODES
from smoe.kernels.norm import RMSNorm
from smoe.kernels.twin import matmul

Activation = Literal["silu", "gptoss"]
MAX_CHOICES = 1024
SMALL_MACS = 1 << 20  # multiply-adds of one matrix up to which a call keeps the interpreter lock
WORDS = 10  # of an Expert in common.h: weight[3], bias[3], ld[3], wtype


class ExpertTensors(NamedTuple):
    """One expert: gate [F, D], up [F, D], down [D, F], biases [F], [F], [D]; one dtype, unit column stride."""

    gate: Tensor
    up: Tensor
    down: Tensor
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None


class ExpertTable:
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
        self._tensors: list[ExpertTensors | None] = [None] * num_slots
        self._words = (ctypes.c_int64 * (num_slots * WORDS))()
        self.struct = native.Table(
            *(ctypes.addressof(self._words), num_slots, hidden, ffn),
            *(native.Norm() if norm is None else norm.struct, ("silu", "gptoss").index(act), alpha, limit),
        )
        self.handle = native.address(self.struct)
        self._entries = native.entries("moe", native.library())
        self._small_pairs = SMALL_MACS // (hidden * ffn)
        self._num_foreign = 0  # slots that hold tensors which the library cannot read

    def set(self, slot: int, tensors: ExpertTensors) -> None:
        """Stores views; ValueError for a wrong shape, dtype or stride."""
        self._check(tensors)
        self.clear(slot)
        self._tensors[slot] = tensors
        if native.usable(*tensors) is None:
            self._num_foreign += 1
            return
        matrices, biases = tensors[:3], tensors[3:]
        self._words[slot * WORDS : (slot + 1) * WORDS] = [
            *(matrix.data_ptr() for matrix in matrices),
            *(0 if bias is None else bias.data_ptr() for bias in biases),
            *(matrix.stride(0) for matrix in matrices),
            DTYPE_CODES[tensors.gate.dtype],
        ]

    def clear(self, slot: int) -> None:
        """Drops the slot's tensors, if any."""
        if not 0 <= slot < self.num_slots:
            raise IndexError(f"slot {slot} of a table of {self.num_slots}")
        held = self._tensors[slot]
        if held is not None and not self._words[slot * WORDS]:
            self._num_foreign -= 1
        self._tensors[slot] = None
        self._words[slot * WORDS] = 0

    def tensors(self, slot: int) -> ExpertTensors:
        """The slot's tensors; LookupError if it is empty."""
        if not 0 <= slot < self.num_slots:
            raise IndexError("a slot lies outside of the expert table")
        held = self._tensors[slot]
        if held is None:
            raise LookupError("a slot of the expert table is empty")
        return held

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
        e = self.tensors(slot)
        gate_TF = _biased(matmul(x_TD, e.gate), e.gate_bias)
        up_TF = _biased(matmul(x_TD, e.up), e.up_bias)
        if self.act == "gptoss":
            gate_TF, up_TF = gate_TF.clamp(max=self.limit), up_TF.clamp(-self.limit, self.limit)
            h_TF = (up_TF + 1.0) * (gate_TF * torch.sigmoid(self.alpha * gate_TF))
        else:
            h_TF = torch.nn.functional.silu(gate_TF) * up_TF
        return _biased(matmul(h_TF.to(x_TD.dtype), e.down), e.down_bias)

    def _check(self, tensors: ExpertTensors) -> None:
        up_shape, down_shape = (self.ffn, self.hidden), (self.hidden, self.ffn)
        shapes = (up_shape, up_shape, down_shape, up_shape[:1], up_shape[:1], down_shape[:1])
        for name, tensor, shape in zip(ExpertTensors._fields, tensors, shapes, strict=True):
            if tensor is None:
                continue
            if tensor.shape != shape or tensor.dtype != tensors.gate.dtype or tensor.stride(-1) != 1:
                raise ValueError(
                    f"ExpertTable: {name} is {tensor.dtype} {list(tensor.shape)} with strides {tensor.stride()}, "
                    f"expected {tensors.gate.dtype} {list(shape)} with unit stride"
                )


def _biased(y_TN: Tensor, bias_N: Tensor | None) -> Tensor:
    return y_TN if bias_N is None else y_TN + bias_N.float()
