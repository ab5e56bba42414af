"""Multi-head latent attention in the absorbed form. Letters: T rows, H heads, L latent, N nope, R rope, V value."""

import torch
from torch import Tensor

from smoe.kernels import native
from smoe.kernels.attention import Rows
from smoe.kernels.native import DTYPE_CODES
from smoe.kernels.norm import RMSNorm

SMALL_MACS = 1 << 20  # multiply-adds below which a call keeps the interpreter lock


class LatentAttention:
    """Queries are carried into the latent space by `key_up`, attend to the cached latents and rotated keys in place,
    and the mean latent is carried to the value space by `value_up`.

    Prompts and single tokens take this one path, summed in fp32, so a row's result depends on its own context only.
    Rotary values come in halves: pair i is (i, R / 2 + i).
    """

    def __init__(self, key_up_HLN: Tensor, value_up_HVL: Tensor, rope_dim: int, scale: float, norm: RMSNorm) -> None:
        """Weights fp32 or bf16, both of one dtype; `scale` multiplies the scores; `norm` is that of the latent."""
        self.key_up_HLN, self.value_up_HVL = key_up_HLN.detach().contiguous(), value_up_HVL.detach().contiguous()
        self.num_heads, self.latent, self.nope = key_up_HLN.shape
        self.value, self.rope_dim, self.scale, self.norm = value_up_HVL.shape[1], rope_dim, scale, norm
        self._struct = native.Mla(
            num_heads=self.num_heads,
            latent=self.latent,
            nope=self.nope,
            rope=rope_dim,
            value=self.value,
            key_up=self.key_up_HLN.data_ptr(),
            value_up=self.value_up_HVL.data_ptr(),
            norm=norm.struct,
            wtype=DTYPE_CODES.get(key_up_HLN.dtype, 0),
            scale=scale,
        )
        self._handle = native.address(self._struct)
        self._lib = native.usable(self.key_up_HLN, self.value_up_HVL)
        self._macs = self.key_up_HLN.numel() + self.value_up_HVL.numel()

    def __call__(
        self, q_TX: Tensor, kv_TX: Tensor, cos_TR: Tensor, sin_TR: Tensor, rows: Rows, latents: Tensor, keys: Tensor
    ) -> Tensor:
        """q [T, H * (N + R)] and kv [T, L + R], raw, cos and sin [T, R / 2] fp32 -> [T, H * V] of q's dtype.

        Writes the rows' normalised latents [arena rows, L] and rotated keys [arena rows, R], both of q's dtype.
        """
        code = DTYPE_CODES.get(q_TX.dtype)
        if self._lib is None or code is None:
            return self.reference(q_TX, kv_TX, cos_TR, sin_TR, rows, latents, keys)
        q_TX, kv_TX = q_TX.contiguous(), kv_TX.contiguous()
        num_rows = q_TX.shape[0]
        if latents.dtype is not q_TX.dtype or keys.dtype is not q_TX.dtype or kv_TX.dtype is not q_TX.dtype:
            raise ValueError(f"LatentAttention: kv and the cache must be {q_TX.dtype}, like q")
        out_TX = torch.empty(num_rows, self.num_heads * self.value, dtype=q_TX.dtype)
        lib = self._lib
        call = lib.held.smoe_mla if num_rows * self._macs <= SMALL_MACS else lib.released.smoe_mla
        status = call(
            *(torch.get_num_threads(), self._handle, q_TX.data_ptr(), kv_TX.data_ptr(), code, num_rows),
            *(cos_TR.data_ptr(), sin_TR.data_ptr(), rows.kv_start_T.data_ptr(), rows.pos_T.data_ptr()),
            *(latents.data_ptr(), keys.data_ptr(), out_TX.data_ptr()),
        )
        if status:
            native.fail(status)
        return out_TX

    def reference(
        self, q_TX: Tensor, kv_TX: Tensor, cos_TR: Tensor, sin_TR: Tensor, rows: Rows, latents: Tensor, keys: Tensor
    ) -> Tensor:
        """The torch twin: row by row, so that its sums too depend on the row's own context only."""
        q_THX = q_TX.float().view(len(q_TX), self.num_heads, -1)
        q_nope_THN, q_rope_THR = torch.split(q_THX, [self.nope, self.rope_dim], dim=2)
        q_rope_THR = _rotate(q_rope_THR, cos_TR.unsqueeze(1), sin_TR.unsqueeze(1))
        latent_TL, key_TR = torch.split(kv_TX, [self.latent, self.rope_dim], dim=1)
        at_T = rows.kv_start_T + rows.pos_T
        latents.index_copy_(0, at_T, self.norm.reference(latent_TL).to(latents.dtype))
        keys.index_copy_(0, at_T, _rotate(key_TR.float(), cos_TR, sin_TR).to(keys.dtype))
        key_up_HLN, value_up_HVL = self.key_up_HLN.float(), self.value_up_HVL.float()
        out = []
        for row, (start, pos) in enumerate(zip(rows.kv_start_T.tolist(), rows.pos_T.tolist(), strict=True)):
            seen_JL, key_JR = (cache[start : start + pos + 1].float() for cache in (latents, keys))
            q_HL = torch.einsum("hn,hln->hl", q_nope_THN[row] * self.scale, key_up_HLN)
            scores_HJ = q_HL @ seen_JL.T + (q_rope_THR[row] * self.scale) @ key_JR.T
            out.append(torch.einsum("hl,hvl->hv", scores_HJ.softmax(1) @ seen_JL, value_up_HVL).flatten())
        return torch.stack(out).to(q_TX.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
