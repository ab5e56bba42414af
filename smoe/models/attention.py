"""Grouped-query attention: one projection to q, k and v, the kernel that writes and reads the KV rows, one back."""

from collections.abc import Callable, Mapping

import torch

from smoe.collectives.group import Group
from smoe.kernels import Attention, LayerNorm, Linear, RMSNorm
from smoe.models.activations import sigmoid
from smoe.models.batch import StepContext
from smoe.models.kv import LayerCache
from smoe.models.rope import RopeTables
from smoe.models.spec import DecoderSpec, GQASpec

Params = Mapping[str, torch.Tensor]


class GQAAttention:
    """x + attention(norm(x)), [T, D] to [T, D]; without x, if `add` is false.

    The projection's rows are q | k | v, and | gate where there is one. `group` has the other heads, if there are more.
    """

    def __init__(
        self,
        attention: GQASpec,
        params: Params,
        prefix: str,
        norm: RMSNorm | LayerNorm,
        rope: RopeTables,
        spec: DecoderSpec,
        group: Group | None = None,
    ) -> None:
        fused = norm if isinstance(norm, RMSNorm) else None
        self._norm = None if isinstance(norm, RMSNorm) else norm
        self._qkv = Linear(params[f"{prefix}.qkv.weight"], params.get(f"{prefix}.qkv.bias"), fused)
        self._out = Linear(params[f"{prefix}.out.weight"], params.get(f"{prefix}.out.bias"))
        self._rope, self._key = rope, rope.key(attention.rope)
        weights = [params.get(f"{prefix}.{name}.weight") for name in ("q_norm", "k_norm")]
        plus_one = spec.norm == "rms_plus_one"
        norms = [None if weight is None else RMSNorm(weight, spec.norm_eps, plus_one) for weight in weights]
        q_norm, k_norm = norms if attention.qk_norm == "head" else (None, None)
        self._full_norms = None
        if attention.qk_norm == "full":
            self._full_norms = [full_norm(norm, group) for norm in norms if norm is not None]
        self._clip = attention.clip_qkv
        heads, kv_heads, width = attention.num_heads, attention.num_kv_heads, attention.head_dim
        self._sizes = [heads * width, kv_heads * width, kv_heads * width]
        self._gated = attention.output_gate
        self._plain = self._full_norms is None and self._clip is None and not self._gated
        self._attention = Attention(
            heads,
            kv_heads,
            width,
            attention.rope.rotary_dim,
            attention.scale,
            attention.window,
            q_norm,
            k_norm,
            params.get(f"{prefix}.sinks"),
        )

    def __call__(
        self, x_TD: torch.Tensor, context: StepContext, cache: LayerCache, *, add: bool = True
    ) -> torch.Tensor:
        cos_TR, sin_TR = self._rope.cos_sin(self._key, context)
        qkv_TX = self._qkv(x_TD if self._norm is None else self._norm(x_TD))
        gate_TX = None
        if not self._plain:
            qkv_TX, gate_TX = self._prepare(qkv_TX)
        out_TX = self._attention(qkv_TX, cos_TR, sin_TR, context.batch.rows, cache.first, cache.second)
        if gate_TX is not None:
            out_TX = out_TX * sigmoid(gate_TX.float()).to(out_TX.dtype)
        return self._out(out_TX, x_TD if add else None)

    def _prepare(self, qkv_TX: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Parts off the gate; norms over the whole projection come before the clip (OLMoE)."""
        gate_TX = None
        if self._gated:
            qkv_TX, gate_TX = torch.split(qkv_TX, [sum(self._sizes), self._sizes[0]], dim=1)
            qkv_TX = qkv_TX.contiguous()
        if self._full_norms is not None:
            q_TX, k_TX, v_TX = torch.split(qkv_TX, self._sizes, dim=1)
            q_norm, k_norm = self._full_norms
            qkv_TX = torch.cat((q_norm(q_TX.contiguous()), k_norm(k_TX.contiguous()), v_TX), dim=1)
        if self._clip is not None:
            qkv_TX = qkv_TX.clamp(-self._clip, self._clip)
        return qkv_TX, gate_TX


def full_norm(norm: RMSNorm, group: Group | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """A norm over all heads, of which `norm` has the weights of those here; `group` has the others."""
    if group is None:
        return norm
    others: Group = group

    def apply(x_TX: torch.Tensor) -> torch.Tensor:
        x = x_TX.float()
        # Heads that several ranks hold are as many of each: the mean over ranks is that over heads.
        square_T1 = others.all_reduce(x.square().mean(dim=1, keepdim=True), "norm") / others.size
        scaled = (x * (square_T1 + norm.eps).rsqrt()).to(x_TX.dtype)
        return (scaled.float() * norm.factor).to(x_TX.dtype)

    return apply
