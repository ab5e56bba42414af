"""The table of expert weights in fp32 or bf16 by slot. Letters: D hidden, F ffn."""

import ctypes

from smoe.kernels import native
from smoe.kernels.native import DTYPE_CODES
from smoe.kernels.slots import MAX_CHOICES, SMALL_MACS, Activation, ExpertTensors, SlotTable, gated

__all__ = ["MAX_CHOICES", "SMALL_MACS", "Activation", "ExpertTable", "ExpertTensors", "gated"]


class ExpertTable(SlotTable[ExpertTensors]):
    """As SlotTable."""

    def set(self, slot: int, tensors: ExpertTensors) -> None:
        """Stores views; ValueError for a wrong shape, dtype or stride."""
        self._check(tensors)
        if native.usable(*tensors) is None:
            return self._store(slot, tensors, None)
        matrices, biases, code = tensors[:3], tensors[3:], DTYPE_CODES[tensors.gate.dtype]
        words: list[ctypes.c_int64 | int] = [
            *(matrix.data_ptr() for matrix in matrices),
            *(0 if bias is None else bias.data_ptr() for bias in biases),
            *(0, 0, 0),
            *(matrix.stride(0) for matrix in matrices),
            *(code, code, 0),
        ]
        return self._store(slot, tensors, words)

    def weights(self, slot: int) -> ExpertTensors:
        return self.tensors(slot)

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
