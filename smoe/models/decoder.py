"""The decoder: embedding, layers of attention and MLP on a residual stream, final norm and head."""

import itertools
from collections.abc import Mapping

import torch

from smoe.collectives.group import Group
from smoe.kernels import LayerNorm, Linear, RMSNorm
from smoe.models.attention import GQAAttention
from smoe.models.bank import ExpertBank
from smoe.models.batch import Batch, StepContext
from smoe.models.delta import DeltaAttention
from smoe.models.kv import KVCache
from smoe.models.mla import MLAAttention
from smoe.models.mlp import DenseMLP, MoEBlock
from smoe.models.rope import RopeTables
from smoe.models.route_counts import RouteCounts
from smoe.models.spec import DecoderSpec, DeltaSpec, GQASpec, MoESpec
from smoe.models.spread import Alone, Spread

Params = Mapping[str, torch.Tensor]


class Decoder:
    """`params` uses our dotted names (`embed`, `layers.3.attn.qkv.weight`, `norm.weight`, `head.weight`, ...).

    Forward is row-wise except for attention: a row's logits do not depend on what else is in the batch.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        params: Params,
        bank: ExpertBank,
        *,
        dtype: torch.dtype,
        spread: Spread | None = None,
        counts: RouteCounts | None = None,
    ) -> None:
        """`spread` says which ranks do what: `spec` and `params` are then this rank's part. By default it has all.
        `counts` of the rows routed here."""
        self.spec, self.dtype = spec, dtype
        self._spread = spread or Alone()
        self._embed = params["embed"]
        self._rope = RopeTables(spec)
        self._layers = [
            (_attention(spec, i, params, self._rope, self._spread.group), _mlp(spec, i, params, bank, counts))
            for i in range(len(spec.layers))
        ]
        self._bank = bank
        self._moe = {i: mlp for i, (_, mlp) in enumerate(self._layers) if isinstance(mlp, MoEBlock)}
        self._next_moe = dict(itertools.pairwise(self._moe))
        bank.use_lookahead(self._look_ahead)
        head = params["embed"] if spec.tied_head else params["head.weight"]
        norm = make_norm(spec, params, "norm")
        fused = norm if isinstance(norm, RMSNorm) else None
        self._head_norm = None if isinstance(norm, RMSNorm) else norm
        self._head = Linear(head, params.get("head.bias"), fused, out_dtype=torch.float32)

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        """Logits [M, V] fp32 of `batch.logit_rows_M` (see Spread.logits). Writes the rows' KV and recurrent states."""
        context, spread = StepContext(batch), self._spread
        spread.begin(batch)
        self._bank.begin_forward(batch.token_ids_T)
        x_TD = spread.embed(self._embed, batch.token_ids_T).to(self.dtype)
        for layer, ((attention, mlp), cache) in enumerate(zip(self._layers, kv.layers, strict=True)):
            rows_RD = spread.attend(layer, attention, x_TD, context, cache)
            x_TD = spread.gather(layer, mlp(rows_RD, context))
        if len(batch.logit_rows_M) != len(x_TD):
            x_TD = x_TD.index_select(0, batch.logit_rows_M)
        return spread.logits(self._head, x_TD if self._head_norm is None else self._head_norm(x_TD))

    def _look_ahead(self, layer: int, h_TD: torch.Tensor) -> torch.Tensor:
        # As float16 because recorded logits are: a policy then decides alike from either.
        return self._moe[self._next_moe[layer]].route(h_TD).to(torch.float16)


def make_norm(spec: DecoderSpec, params: Params, name: str) -> RMSNorm | LayerNorm:
    """The family's kind of norm over the hidden size, from `name`.weight (and .bias)."""
    if spec.norm == "layer":
        return LayerNorm(params[f"{name}.weight"], params[f"{name}.bias"], spec.norm_eps)
    return RMSNorm(params[f"{name}.weight"], spec.norm_eps, plus_one=spec.norm == "rms_plus_one")


def _attention(
    spec: DecoderSpec, layer: int, params: Params, rope: RopeTables, group: Group | None
) -> GQAAttention | MLAAttention | DeltaAttention:
    attention = spec.layers[layer].attention
    prefix = f"layers.{layer}.attn"
    norm = make_norm(spec, params, f"layers.{layer}.attn_norm")
    if isinstance(attention, GQASpec):
        return GQAAttention(attention, params, prefix, norm, rope, spec, group)
    if isinstance(attention, DeltaSpec):
        return DeltaAttention(attention, params, prefix, norm, spec)
    return MLAAttention(attention, params, prefix, norm, rope, spec)


def _mlp(
    spec: DecoderSpec, layer: int, params: Params, bank: ExpertBank, counts: RouteCounts | None
) -> DenseMLP | MoEBlock:
    mlp = spec.layers[layer].mlp
    norm = make_norm(spec, params, f"layers.{layer}.mlp_norm")
    if isinstance(mlp, MoESpec):
        return MoEBlock(mlp, layer, params, f"layers.{layer}.moe", norm, bank, counts)
    return DenseMLP(mlp, params, f"layers.{layer}.mlp", norm)
