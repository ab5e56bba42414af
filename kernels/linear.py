"""Linear layer with the norm before and the residual sum after it. Letters: T rows, K inputs, N outputs."""

import torch
from torch import Tensor, empty, get_num_threads

from smoe.kernels import native
from smoe.kernels.native import DTYPE_CODES
from smoe.kernels.norm import RMSNorm
from smoe.kernels.twin import matmul

SMALL_MACS = 1 << 20  # multiply-adds below which a call keeps the interpreter lock


class Linear:
    """y = residual + (norm(x) @ weight.T + bias), summed in fp32 and rounded once.

    Each output's order of additions depends on K alone. The weights stay where they are: no copy is made.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        norm: RMSNorm | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> None:
        """weight [N, K] fp32 or bf16 with unit column stride, bias [N]; out_dtype defaults to x's dtype."""
        self.weight = weight.detach() if weight.stride(1) == 1 else weight.detach().contiguous()
        self.bias = None if bias is None else bias.detach().float().contiguous()
        self.norm, self.out_dtype = norm, out_dtype
        self.num_outputs, self.num_inputs = weight.shape
        self._struct = native.Linear(
            weight=self.weight.data_ptr(),
            bias=None if self.bias is None else self.bias.data_ptr(),
            ld=self.weight.stride(0),
            n=self.num_outputs,
            k=self.num_inputs,
            norm=native.Norm() if norm is None else norm.struct,
            wtype=DTYPE_CODES.get(weight.dtype, 0),
        )
        self.handle = native.address(self._struct)
        fits = out_dtype is None or out_dtype in DTYPE_CODES
        self._entries = native.entries("linear", native.usable(self.weight, self.bias) if fits else None)
        self._small_rows = SMALL_MACS // max(1, weight.numel())

    def __call__(self, x_TK: Tensor, residual_TN: Tensor | None = None) -> Tensor:
        """x_TK [T, K] fp32 or bf16, residual_TN [T, N] of x's dtype -> [T, N]."""
        dtype = x_TK.dtype
        code = DTYPE_CODES.get(dtype)
        entries = self._entries
        if entries is None or code is None:
            return self.reference(x_TK, residual_TN)
        if not x_TK.is_contiguous():
            x_TK = x_TK.contiguous()
        num_rows, width = x_TK.shape
        if width != self.num_inputs:
            raise ValueError(f"Linear: x has {width} columns, expected {self.num_inputs}")
        out_dtype = self.out_dtype or dtype
        y_TN = empty(num_rows, self.num_outputs, dtype=out_dtype)
        residual = None
        if residual_TN is not None:
            if residual_TN.dtype is not dtype or residual_TN.numel() != num_rows * self.num_outputs:
                raise ValueError(f"Linear: residual must be {dtype} [{num_rows}, {self.num_outputs}]")
            residual_TN = residual_TN.contiguous()
            residual = residual_TN.data_ptr()
        status = entries[num_rows > self._small_rows](
            get_num_threads(),
            self.handle,
            x_TK.data_ptr(),
            code,
            num_rows,
            residual,
            y_TN.data_ptr(),
            DTYPE_CODES[out_dtype],
        )
        if status:
            native.fail(status)
        return y_TN

    def reference(self, x_TK: Tensor, residual_TN: Tensor | None = None) -> Tensor:
        """The torch twin."""
        h_TK = x_TK if self.norm is None else self.norm.reference(x_TK)
        y_TN = matmul(h_TK, self.weight)
        if self.bias is not None:
            y_TN = y_TN + self.bias
        if residual_TN is not None:
            y_TN = residual_TN.float() + y_TN
        return y_TN.to(self.out_dtype or x_TK.dtype)
