"""The table of 4-bit expert weights by slot, for the same `moe` and `moe_pairs`."""

import ctypes

from smoe.kernels import native
from smoe.kernels.int4 import Int4Tensors, dequantise_expert, expert_shapes
from smoe.kernels.slots import Activation, ExpertTensors, SlotTable

F32_CODE, INT4_CODE = 0, 2  # in common.h


class Int4Table(SlotTable[Int4Tensors]):
    """As SlotTable. On the CPU the results have the bits of an ExpertTable of the same weights in fp32."""

    def __init__(
        self,
        num_slots: int,
        hidden: int,
        ffn: int,
        group_size: int,
        act: Activation = "silu",
        alpha: float = 1.702,
        limit: float = 7.0,
    ) -> None:
        super().__init__(num_slots, hidden, ffn, act, alpha, limit)
        self.group_size = group_size
        self._shapes = expert_shapes(hidden, ffn, group_size)

    def set(self, slot: int, tensors: Int4Tensors) -> None:
        """Stores views; ValueError for a wrong shape, dtype or stride."""
        for name, (dtype, shape) in self._shapes.items():
            tensor = getattr(tensors, name)
            if tensor is None:
                continue
            fits = tensor.stride(-1) == 1 and (name in ("gate", "up", "down") or tensor.is_contiguous())
            if tensor.shape != shape or tensor.dtype is not dtype or not fits:
                raise ValueError(
                    f"Int4Table: {name} is {tensor.dtype} {list(tensor.shape)} with strides {tensor.stride()}, "
                    f"expected {dtype} {list(shape)} with unit stride"
                )
        if native.library() is None or not all(tensor is None or tensor.is_cpu for tensor in tensors):
            return self._store(slot, tensors, None)
        codes, scales, biases = tensors[:6:2], tensors[1:6:2], tensors[6:]
        words: list[ctypes.c_int64 | int] = [
            *(matrix.data_ptr() for matrix in codes),
            *(0 if bias is None else bias.data_ptr() for bias in biases),
            *(matrix.data_ptr() for matrix in scales),
            *(matrix.stride(0) for matrix in codes),
            *(INT4_CODE, F32_CODE, self.group_size),
        ]
        return self._store(slot, tensors, words)

    def weights(self, slot: int) -> ExpertTensors:
        """fp32, multiplied out anew at every call."""
        return dequantise_expert(self.tensors(slot), self.hidden, self.ffn, self.group_size)
