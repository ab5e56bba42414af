"""Gated delta net (Qwen3-Next): one projection, the kernel that carries a sequence's state on, one back."""

from collections.abc import Mapping

import torch

from smoe.kernels import GatedDelta, LayerNorm, Linear, RMSNorm
from smoe.models.batch import StepContext
from smoe.models.kv import LayerCache
from smoe.models.spec import DecoderSpec, DeltaSpec

Params = Mapping[str, torch.Tensor]


class DeltaAttention:
    """x + net(norm(x)), [T, D] to [T, D]; without x, if `add` is false.

    The projection's rows are q | k | v | z | b | a, each by head. A span's state is slot `state_slots[s]` of the cache;
    a span with no past starts from zero.
    """

    def __init__(
        self, attention: DeltaSpec, params: Params, prefix: str, norm: RMSNorm | LayerNorm, spec: DecoderSpec
    ) -> None:
        assert isinstance(norm, RMSNorm)
        self._in = Linear(params[f"{prefix}.in.weight"], norm=norm)
        self._net = GatedDelta(
            attention.num_key_heads,
            attention.key_head_dim,
            params[f"{prefix}.conv.weight"],
            params[f"{prefix}.a_log"],
            params[f"{prefix}.dt_bias"],
            RMSNorm(params[f"{prefix}.norm.weight"], spec.norm_eps),
        )
        self._out = Linear(params[f"{prefix}.out.weight"])

    def __call__(
        self, x_TD: torch.Tensor, context: StepContext, cache: LayerCache, *, add: bool = True
    ) -> torch.Tensor:
        batch = context.batch
        spans = [
            (first, count, past, slot)
            for (first, count, _, past), slot in zip(batch.rows.spans, batch.state_slots, strict=True)
        ]
        in_TX = self._in(x_TD)
        if batch.delta_sink is not None:
            batch.delta_sink(self._net, in_TX, cache)
        return self._out(self._net(in_TX, spans, cache.first, cache.second), x_TD if add else None)
