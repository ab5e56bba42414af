"""Grouped-query attention over a KV arena. Letters: T rows, H heads, R half the rotary width, N arena rows.

A row is one token of one sequence; sequence s owns the arena rows from kv_start on.
"""

from typing import NamedTuple

import torch
from torch import Tensor, empty, get_num_threads

from smoe.kernels import native
from smoe.kernels.native import DTYPE_CODES
from smoe.kernels.norm import RMSNorm

SMALL_ROWS = 4  # rows up to which a call may keep the interpreter lock
MAX_HEAD_DIM = 512


class Rows(NamedTuple):
    """Which tokens a step computes; the rows of one sequence are neighbours in ascending position.

    spans: per sequence (first_row, num_rows, kv_start, past).
    """

    kv_start_T: Tensor  # [T] i64: first arena row of the row's sequence
    pos_T: Tensor  # [T] i64: position in the sequence; its key and value lie at kv_start + pos
    spans: tuple[tuple[int, int, int, int], ...]


class Attention:
    """QK norm, rotary embedding, writing of keys and values, causal attention.

    Softmax in fp32; `sinks` adds one logit per head to its denominator. A row's order of additions depends on its
    position and the window alone.
    """

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        rotary_dim: int,
        scale: float,
        window: int | None = None,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        """q_norm and k_norm over head_dim; sinks [H]; window counts the row itself."""
        if num_heads % num_kv_heads or rotary_dim % 2 or rotary_dim > head_dim or head_dim > MAX_HEAD_DIM:
            raise ValueError(f"Attention: {num_heads=} {num_kv_heads=} {rotary_dim=} {head_dim=} do not fit together")
        if window is not None and window < 1:
            raise ValueError(f"Attention: window={window} must be positive")
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.rotary_dim, self.scale, self.window = rotary_dim, scale, window
        self.q_norm, self.k_norm = q_norm, k_norm
        self.sinks = None if sinks is None else sinks.detach().float().contiguous()
        self._width = (num_heads + 2 * num_kv_heads) * head_dim
        self._struct = native.Attention(
            *(num_heads, num_kv_heads, head_dim, rotary_dim, window or 0),
            *(native.Norm() if norm is None else norm.struct for norm in (q_norm, k_norm)),
            *(None if self.sinks is None else self.sinks.data_ptr(), scale),
        )
        self._handle = native.address(self._struct)
        factors = (norm.factor for norm in (q_norm, k_norm) if norm)
        self._entries = native.entries("attention", native.usable(self.sinks, *factors))

    def __call__(
        self,
        qkv_TX: Tensor,
        cos_TR: Tensor | None,
        sin_TR: Tensor | None,
        rows: Rows,
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> Tensor:
        """qkv_TX [T, (H + 2 Hkv) d], cos and sin fp32 [T, R] or None, caches [N, Hkv, d] of qkv's dtype -> [T, H d]."""
        code = DTYPE_CODES.get(qkv_TX.dtype)
        entries = self._entries
        if entries is None or code is None or not qkv_TX.is_cpu:
            return self.reference(qkv_TX, cos_TR, sin_TR, rows, k_cache, v_cache)
        num_rows, width = qkv_TX.shape
        if width != self._width or k_cache.dtype is not qkv_TX.dtype:
            raise ValueError(f"Attention: qkv must be {k_cache.dtype} [T, {self._width}]")
        if not (qkv_TX.is_contiguous() and k_cache.is_contiguous() and v_cache.is_contiguous()):
            raise ValueError("Attention: qkv and the caches must be contiguous")
        out_TX = empty(num_rows, self.num_heads * self.head_dim, dtype=qkv_TX.dtype)
        status = entries[num_rows > SMALL_ROWS](
            get_num_threads(),
            self._handle,
            qkv_TX.data_ptr(),
            code,
            num_rows,
            None if cos_TR is None else cos_TR.data_ptr(),
            None if sin_TR is None else sin_TR.data_ptr(),
            rows.kv_start_T.data_ptr(),
            rows.pos_T.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            out_TX.data_ptr(),
        )
        if status:
            native.fail(status)
        return out_TX

    def reference(
        self,
        qkv_TX: Tensor,
        cos_TR: Tensor | None,
        sin_TR: Tensor | None,
        rows: Rows,
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> Tensor:
        """The torch twin: one sequence at a time."""
        d, heads, kv_heads = self.head_dim, self.num_heads, self.num_kv_heads
        q_THd, k_TGd, v_TGd = torch.split(qkv_TX.view(-1, heads + 2 * kv_heads, d), [heads, kv_heads, kv_heads], 1)
        q_THd = _rotate(_normed(q_THd, self.q_norm), cos_TR, sin_TR)
        k_TGd = _rotate(_normed(k_TGd, self.k_norm), cos_TR, sin_TR)
        at_T = rows.kv_start_T + rows.pos_T
        k_cache[at_T], v_cache[at_T] = k_TGd.to(k_cache.dtype), v_TGd
        out_THd = torch.empty_like(q_THd)
        for first, num, kv_start, past in rows.spans:
            out_THd[first : first + num] = self._one(q_THd[first : first + num], kv_start, past, k_cache, v_cache)
        return out_THd.flatten(1).to(qkv_TX.dtype)

    def _one(self, q_THd: Tensor, kv_start: int, past: int, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        num_rows = len(q_THd)
        low = 0 if self.window is None else max(0, past - self.window + 1)
        keys = slice(kv_start + low, kv_start + past + num_rows)
        group = self.num_heads // self.num_kv_heads
        k_HJd = k_cache[keys].float().repeat_interleave(group, 1).transpose(0, 1)
        v_HJd = v_cache[keys].float().repeat_interleave(group, 1).transpose(0, 1)
        logits_HTJ = (q_THd.transpose(0, 1) * self.scale) @ k_HJd.mT
        pos_T1 = torch.arange(past, past + num_rows, device=q_THd.device)[:, None]
        pos_J = torch.arange(low, past + num_rows, device=q_THd.device)
        seen_TJ = pos_J <= pos_T1
        if self.window is not None:
            seen_TJ &= pos_J > pos_T1 - self.window
        logits_HTJ = logits_HTJ.masked_fill(~seen_TJ, -torch.inf)
        if self.sinks is not None:
            sinks_HT1 = self.sinks[:, None, None].expand(-1, num_rows, 1)
            logits_HTJ = torch.cat([logits_HTJ, sinks_HT1], -1)
        weights_HTJ = logits_HTJ.softmax(-1)[..., : len(pos_J)]
        return (weights_HTJ @ v_HJd).transpose(0, 1)


def _normed(x_THd: Tensor, norm: RMSNorm | None) -> Tensor:
    return x_THd.float() if norm is None else norm.reference(x_THd).float()


def _rotate(x_THd: Tensor, cos_TR: Tensor | None, sin_TR: Tensor | None) -> Tensor:
    """Rotate-half over the first 2R features of each head; the others pass."""
    if cos_TR is None or sin_TR is None:
        return x_THd
    half = cos_TR.shape[1]
    u, v, rest = torch.split(x_THd, [half, half, x_THd.shape[2] - 2 * half], 2)
    cos, sin = cos_TR[:, None], sin_TR[:, None]
    return torch.cat([u * cos - v * sin, v * cos + u * sin, rest], 2)
