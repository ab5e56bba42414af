"""Phi-3.5-MoE: layer norms with biases, a head bias, the sparse mixer as router, longrope."""

from dataclasses import replace

from smoe.models.checkpoint import CheckpointMap, Family
from smoe.models.families.common import (
    HfConfig,
    check_silu,
    decoder_params,
    decoder_spec,
    head_dim_of,
    ignored_tensors,
    param,
    reject,
    split_and_stacked_experts,
    window_of,
)
from smoe.models.rope import rope_parameters, rope_spec
from smoe.models.spec import DecoderSpec, GQASpec, LayerSpec, MoESpec, RopeSpec, RouterSpec

_MIXED = 2  # the sparse mixer has a rule for exactly two experts


def parse(config: HfConfig) -> DecoderSpec:
    check_silu(config)
    head_dim = head_dim_of(config)
    attention = GQASpec(
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=_rope(config, head_dim),
        window=window_of(config.sliding_window),
        qkv_bias=config.attention_bias,
        out_bias=config.attention_bias,
    )
    if config.num_experts_per_tok != _MIXED:
        raise reject("num_experts_per_tok", config.num_experts_per_tok, f"{_MIXED}: all that the sparse mixer defines")
    if config.num_local_experts < _MIXED:
        raise reject("num_local_experts", config.num_local_experts, f"at least {_MIXED}")
    router = RouterSpec(
        num_experts=config.num_local_experts,
        top_k=_MIXED,
        scoring="sparsemixer",
        normalize=False,
        jitter_eps=config.router_jitter_noise,
    )
    layer = LayerSpec(attention=attention, mlp=MoESpec(router=router, ffn=config.intermediate_size))
    layers = [layer] * config.num_hidden_layers
    return decoder_spec(config, "phi35_moe", layers, norm="layer", head_bias=config.lm_head_bias)


def _rope(config: HfConfig, head_dim: int) -> RopeSpec:
    """The factors on cos and sin are `short_mscale` and `long_mscale`. transformers' Phi-MoE rotates by the short
    frequencies at every length and changes only the factor beyond the original length; so do we."""
    rope = rope_spec(config, head_dim)
    parameters = rope_parameters(config)
    if parameters.get("rope_type", "default") == "default":
        return rope
    return replace(
        rope,
        attention_factor=float(parameters["short_mscale"]),
        long_attention_factor=float(parameters["long_mscale"]),
        long_inv_freq=rope.inv_freq,
        original_len=int(parameters["original_max_position_embeddings"]),
    )


def checkpoint_map(spec: DecoderSpec) -> CheckpointMap:
    """The stacked layout also renames modules: `block_sparse_moe` to `mlp`, and its `gate` to `router`."""
    params = decoder_params(spec)
    experts = {}
    for i in spec.moe_layers:
        old, new = f"model.layers.{i}.block_sparse_moe", f"model.layers.{i}.mlp"
        params[f"layers.{i}.moe.router.weight"] = param(
            f"{old}.gate.weight", spec.moe(i).router.num_experts, spec.hidden, aliases=(f"{new}.router.weight",)
        )
        experts[i] = split_and_stacked_experts(
            f"{old}.experts", gate="w1", up="w3", down="w2", stacked=f"{new}.experts"
        )
    return CheckpointMap(params=params, experts=experts, ignored=ignored_tensors(spec))


FAMILY = Family("phi35_moe", ("phimoe",), parse, checkpoint_map)
