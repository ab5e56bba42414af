"""RMS and layer norm. Letters: T rows, D features."""

import torch
from torch import Tensor, empty_like, get_num_threads
from torch.nn import functional

from smoe.kernels import native
from smoe.kernels.native import DTYPE_CODES

SMALL = 1 << 16  # values below which a call keeps the interpreter lock


class RMSNorm:
    """x * rsqrt(mean(x^2) + eps) in fp32, rounded to x's dtype, times weight.

    plus_one: the factor is 1 + weight, formed in fp32 and applied before the one rounding.
    """

    def __init__(self, weight: Tensor, eps: float, plus_one: bool = False) -> None:
        """weight [D], any float dtype."""
        factor = weight.detach().float()
        self.factor = (factor + 1.0 if plus_one else factor).contiguous()
        self.eps, self.plus_one, self.dim = eps, plus_one, weight.shape[0]
        self.struct = native.Norm(self.factor.data_ptr(), eps, int(plus_one))
        self.handle = native.address(self.struct)
        self._entries = native.entries("norm", native.usable(self.factor))

    def __call__(self, x_TD: Tensor) -> Tensor:
        """x_TD [T, D] fp32 or bf16 -> the same shape and dtype."""
        code = DTYPE_CODES.get(x_TD.dtype)
        entries = self._entries
        if entries is None or code is None:
            return self.reference(x_TD)
        if not x_TD.is_contiguous():
            x_TD = x_TD.contiguous()
        num_rows, dim = x_TD.shape
        if dim != self.dim:
            raise ValueError(f"RMSNorm: x has {dim} columns, expected {self.dim}")
        y_TD = empty_like(x_TD)
        call = entries[num_rows * dim >= SMALL]
        status = call(get_num_threads(), self.handle, x_TD.data_ptr(), code, num_rows, dim, y_TD.data_ptr())
        if status:
            native.fail(status)
        return y_TD

    def reference(self, x: Tensor) -> Tensor:
        """The torch twin; also takes [..., D]."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        if self.plus_one:
            return (wide * self.factor).to(x.dtype)
        return (wide.to(x.dtype).float() * self.factor).to(x.dtype)


class LayerNorm:
    """torch's layer norm over the last dimension, in fp32."""

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        """weight and bias [D]."""
        self.weight = weight.detach().float()
        self.bias = None if bias is None else bias.detach().float()
        self.eps = eps

    def __call__(self, x_TD: Tensor) -> Tensor:
        """x_TD [T, D] -> the same shape and dtype."""
        return functional.layer_norm(x_TD.float(), self.weight.shape, self.weight, self.bias, self.eps).to(x_TD.dtype)

    reference = __call__
