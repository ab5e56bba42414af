"""The gated delta net of Qwen3-Next. Letters: T rows, H value heads, G key heads, K and V their sizes, C channels."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from smoe.kernels import native
from smoe.kernels.native import DTYPE_CODES
from smoe.kernels.norm import RMSNorm

SMALL_MACS = 1 << 18  # multiply-adds below which a call keeps the interpreter lock
_NORM_EPS = 1e-6  # of the unit queries and keys: a constant of the model's code

Spans = Sequence[tuple[int, int, int, int]]
"""(first row, rows, rows before them, state slot) of each sequence; 0 rows before: its state starts at zero."""


class GatedDelta:
    """Causal convolution, gated delta rule and gated norm between the two projections of a layer.

    Tokens of a sequence are taken one after the other in fp32, so the results do not depend on how a prompt is cut
    into steps or on other sequences. Channels are q | k | v, C = 2 G K + H V; value heads share key heads in order.
    """

    def __init__(
        self, key_heads: int, key_dim: int, conv_CW: Tensor, a_log_H: Tensor, dt_bias_H: Tensor, norm: RMSNorm
    ) -> None:
        """conv [C, taps]; `norm` is over each value head."""
        self.key_heads, self.key_dim, self.norm = key_heads, key_dim, norm
        self.value_heads, self.value_dim = len(a_log_H), norm.dim
        self.channels, self.taps = conv_CW.shape
        self.conv_WC = conv_CW.detach().float().T.contiguous()
        self.rate_H = -a_log_H.detach().float().exp()
        self.dt_bias_H = dt_bias_H.detach().float().contiguous()
        self._struct = native.Delta(
            key_heads=key_heads,
            value_heads=self.value_heads,
            key_dim=key_dim,
            value_dim=self.value_dim,
            taps=self.taps,
            conv=self.conv_WC.data_ptr(),
            rate=self.rate_H.data_ptr(),
            dt_bias=self.dt_bias_H.data_ptr(),
            norm=norm.struct,
        )
        self._handle = native.address(self._struct)
        self._lib = native.usable(self.conv_WC)
        self._macs = 3 * self.value_heads * self.value_dim * key_dim

    def __call__(self, x_TX: Tensor, spans: Spans, tails_SWC: Tensor, states_SHKV: Tensor) -> Tensor:
        """x [T, C + H V + 2 H]: q | k | v | z | b | a -> [T, H V] of x's dtype.

        Updates each span's slot of tails [slots, taps - 1, C] and states [slots, H, K, V], both fp32.
        """
        code = DTYPE_CODES.get(x_TX.dtype)
        if self._lib is None or code is None:
            return self.reference(x_TX, spans, tails_SWC, states_SHKV)
        x_TX = x_TX.contiguous()
        num_rows, num_values = len(x_TX), self.value_heads * self.value_dim
        width = self.channels + num_values + 2 * self.value_heads
        if x_TX.shape[1] != width:
            raise ValueError(f"GatedDelta: x has {x_TX.shape[1]} columns, expected {width}")
        layout = torch.tensor(spans, dtype=torch.int64)
        out_TX = torch.empty(num_rows, num_values, dtype=x_TX.dtype)
        lib = self._lib
        call = lib.held.smoe_delta if num_rows * self._macs <= SMALL_MACS else lib.released.smoe_delta
        status = call(
            *(torch.get_num_threads(), self._handle, x_TX.data_ptr(), code, num_rows, layout.data_ptr(), len(spans)),
            *(tails_SWC.data_ptr(), states_SHKV.data_ptr(), out_TX.data_ptr()),
        )
        if status:
            native.fail(status)
        return out_TX

    def reference(self, x_TX: Tensor, spans: Spans, tails_SWC: Tensor, states_SHKV: Tensor) -> Tensor:
        """The torch twin; one token at a time throughout, so that its results too do not depend on the step."""
        out_TX = x_TX.new_empty(len(x_TX), self.value_heads * self.value_dim)
        for first, count, past, slot in spans:
            if past == 0:
                tails_SWC[slot].zero_()
                states_SHKV[slot].zero_()
            for row in range(first, first + count):
                out_TX[row] = self._token(x_TX[row].float(), tails_SWC[slot], states_SHKV[slot])
        return out_TX

    def _token(self, x_X: Tensor, tail_WC: Tensor, state_HKV: Tensor) -> Tensor:
        heads, keys = self.value_heads, self.key_heads * self.key_dim
        mixed_C, z_X, b_H, a_H = torch.split(x_X, [self.channels, heads * self.value_dim, heads, heads])
        window_WC = torch.cat((tail_WC, mixed_C.unsqueeze(0)))
        tail_WC.copy_(window_WC[1:])
        mixed_C = functional.silu((self.conv_WC * window_WC).sum(0))
        q_X, k_X, v_X = torch.split(mixed_C, [keys, keys, heads * self.value_dim])
        q_HK1, k_HK1 = (self._unit(part).unsqueeze(2) for part in (q_X, k_X))
        state_HKV.mul_((self.rate_H * functional.softplus(a_H + self.dt_bias_H)).exp().view(-1, 1, 1))
        held_HV = (state_HKV * k_HK1).sum(1)
        update_HV = (v_X.view_as(held_HV) - held_HV) * b_H.sigmoid().unsqueeze(1)
        state_HKV.add_(k_HK1 * update_HV.unsqueeze(1))
        read_HV = (state_HKV * q_HK1).sum(1) * self.key_dim**-0.5
        return (self.norm.reference(read_HV) * functional.silu(z_X.view_as(read_HV))).flatten()

    def _unit(self, x_X: Tensor) -> Tensor:
        """One vector of length 1 for each value head."""
        x_GK = x_X.view(self.key_heads, -1)
        x_GK = x_GK * torch.rsqrt(x_GK.square().sum(1, keepdim=True) + _NORM_EPS)
        return x_GK.repeat_interleave(self.value_heads // self.key_heads, dim=0)
