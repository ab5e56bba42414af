"""Multi-head latent attention (DeepSeek): projections to queries and latents, the kernel between, one back."""

from collections.abc import Mapping

import torch

from smoe.kernels import LatentAttention, LayerNorm, Linear, RMSNorm
from smoe.models.batch import StepContext
from smoe.models.kv import LayerCache
from smoe.models.rope import RopeTables
from smoe.models.spec import DecoderSpec, MLASpec

Params = Mapping[str, torch.Tensor]


class MLAAttention:
    """x + attention(norm(x)), [T, D] to [T, D]; without x, if `add` is false.

    kv_b is never applied to the context: its key half carries queries into the latent space and its value half
    carries the mean latent out of it, for prompts as for single tokens, so that both give the same bits.
    `kv_b.weight` is as `pack_kv_b` makes it; the last rotary rows of each head of q and of kv_a lie in two halves.
    """

    def __init__(
        self,
        attention: MLASpec,
        params: Params,
        prefix: str,
        norm: RMSNorm | LayerNorm,
        rope: RopeTables,
        spec: DecoderSpec,
    ) -> None:
        assert isinstance(norm, RMSNorm)

        def linear(part: str, norm: RMSNorm | None = None) -> Linear:
            return Linear(params[f"{prefix}.{part}.weight"], params.get(f"{prefix}.{part}.bias"), norm=norm)

        def latent_norm(part: str) -> RMSNorm:
            return RMSNorm(params[f"{prefix}.{part}.weight"], attention.latent_norm_eps)

        if attention.q_lora_rank is None:
            self._q = [linear("q", norm)]
        else:
            self._q = [linear("q_a", norm), linear("q_b", latent_norm("q_a_norm"))]
        self._kv = linear("kv_a", norm)
        key_up_HLN, value_up_HVL = unpack_kv_b(attention, params[f"{prefix}.kv_b.weight"])
        self._attend = LatentAttention(
            key_up_HLN, value_up_HVL, attention.qk_rope_head_dim, attention.scale, latent_norm("kv_a_norm")
        )
        self._out = linear("out")
        self._rope, self._key = rope, rope.key(attention.rope)

    def __call__(
        self, x_TD: torch.Tensor, context: StepContext, cache: LayerCache, *, add: bool = True
    ) -> torch.Tensor:
        cos_TR, sin_TR = self._rope.cos_sin(self._key, context)
        q_TX = x_TD
        for project in self._q:
            q_TX = project(q_TX)
        out_TX = self._attend(q_TX, self._kv(x_TD), cos_TR, sin_TR, context.batch.rows, cache.first, cache.second)
        return self._out(out_TX, x_TD if add else None)


def pack_kv_b(attention: MLASpec, tensors: list[torch.Tensor]) -> torch.Tensor:
    """From kv_b_proj [H * (nope + V), L], keys and values of a head together, to one flat tensor that holds
    key_up [H, L, nope] and then value_up [H, V, L]."""
    nope, value = attention.qk_nope_head_dim, attention.v_head_dim
    kv_HXL = tensors[0].view(-1, nope + value, attention.kv_lora_rank)
    key_HNL, value_HVL = torch.split(kv_HXL, [nope, value], dim=1)
    return torch.cat((key_HNL.transpose(1, 2).reshape(-1), value_HVL.reshape(-1)))


def unpack_kv_b(attention: MLASpec, packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views key_up [H, L, nope] and value_up [H, V, L]."""
    heads, latent = attention.num_heads, attention.kv_lora_rank
    sizes = [heads * latent * size for size in (attention.qk_nope_head_dim, attention.v_head_dim)]
    key_up, value_up = torch.split(packed, sizes)
    return key_up.view(heads, latent, -1), value_up.view(heads, -1, latent)
