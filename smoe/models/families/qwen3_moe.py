"""Qwen3-MoE: per-head q and k norms, no shared expert, weights renormalised only where `norm_topk_prob` says so."""

from smoe.models.checkpoint import CheckpointMap, Family
from smoe.models.families.common import (
    HfConfig,
    check_silu,
    decoder_params,
    decoder_spec,
    head_dim_of,
    ignored_tensors,
    moe_layer_flags,
    param,
    qwen_experts,
    softmax_router,
    window_of,
)
from smoe.models.rope import rope_spec
from smoe.models.spec import DecoderSpec, DenseSpec, GQASpec, LayerSpec, MoESpec


def parse(config: HfConfig) -> DecoderSpec:
    check_silu(config)
    head_dim = head_dim_of(config)
    attention = GQASpec(
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=rope_spec(config, head_dim),
        window=window_of(config.sliding_window),
        qk_norm="head",
        qkv_bias=config.attention_bias,
        out_bias=config.attention_bias,
    )
    router = softmax_router(config, experts_field="num_experts", normalize=config.norm_topk_prob)
    moe = MoESpec(router=router, ffn=config.moe_intermediate_size)
    dense = DenseSpec(ffn=config.intermediate_size)
    layers = [LayerSpec(attention=attention, mlp=moe if flag else dense) for flag in moe_layer_flags(config)]
    return decoder_spec(config, "qwen3_moe", layers)


def checkpoint_map(spec: DecoderSpec) -> CheckpointMap:
    params = decoder_params(spec)
    experts = {}
    for i in spec.moe_layers:
        mlp = f"model.layers.{i}.mlp"
        params[f"layers.{i}.moe.router.weight"] = param(
            f"{mlp}.gate.weight", spec.moe(i).router.num_experts, spec.hidden
        )
        experts[i] = qwen_experts(f"{mlp}.experts")
    return CheckpointMap(params=params, experts=experts, ignored=ignored_tensors(spec))


FAMILY = Family("qwen3_moe", ("qwen3_moe",), parse, checkpoint_map)
