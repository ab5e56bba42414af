"""Dense gated MLP (also the shared expert): one expert that every row uses. Letters: T rows, D hidden, F ffn."""

from torch import Tensor, empty_like, get_num_threads

from smoe.kernels import native
from smoe.kernels.experts import SMALL_MACS, Activation, ExpertTable, ExpertTensors
from smoe.kernels.native import DTYPE_CODES
from smoe.kernels.norm import RMSNorm


class GatedMLP:
    """y = residual + down(act(gate(norm(x))) * up(norm(x))), the intermediate rounded to x's dtype."""

    def __init__(
        self, gate: Tensor, up: Tensor, down: Tensor, norm: RMSNorm | None = None, act: Activation = "silu"
    ) -> None:
        """gate and up [F, D], down [D, F], fp32 or bf16 with unit column stride."""
        ffn, self.hidden = gate.shape
        self.table = ExpertTable(1, self.hidden, ffn, act, norm=norm)
        self.table.set(0, ExpertTensors(gate.detach(), up.detach(), down.detach()))
        self._entries = native.entries("moe", native.usable(gate, up, down))
        self._small_rows = SMALL_MACS // (self.hidden * ffn)

    def __call__(self, x_TD: Tensor, residual: Tensor | None = None) -> Tensor:
        """x_TD [T, D] fp32 or bf16, residual [T, D] of the same dtype -> [T, D]."""
        code = DTYPE_CODES.get(x_TD.dtype)
        entries = self._entries
        if entries is None or code is None:
            return self.reference(x_TD, residual)
        if not x_TD.is_contiguous():
            x_TD = x_TD.contiguous()
        num_rows, width = x_TD.shape
        if width != self.hidden:
            raise ValueError(f"GatedMLP: x has {width} columns, expected {self.hidden}")
        base = None
        if residual is not None:
            if residual.dtype is not x_TD.dtype or residual.numel() != x_TD.numel():
                raise ValueError(f"GatedMLP: residual must be {x_TD.dtype} {list(x_TD.shape)}")
            residual = residual.contiguous()
            base = residual.data_ptr()
        y_TD = empty_like(x_TD)
        status = entries[num_rows > self._small_rows](
            get_num_threads(),
            self.table.handle,
            x_TD.data_ptr(),
            code,
            num_rows,
            1,
            None,
            None,
            None,
            base,
            None,
            y_TD.data_ptr(),
            code,
        )
        if status:
            native.fail(status)
        return y_TD

    def reference(self, x_TD: Tensor, residual: Tensor | None = None) -> Tensor:
        """The torch twin."""
        h_TD = x_TD if self.table.norm is None else self.table.norm.reference(x_TD)
        y_TD = self.table.apply_ref(0, h_TD)
        return (y_TD if residual is None else residual.float() + y_TD).to(x_TD.dtype)
