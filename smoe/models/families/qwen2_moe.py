"""Qwen1.5-MoE and Qwen2-MoE: biases on q, k and v, a shared expert behind a sigmoid gate."""

from smoe.models.checkpoint import CheckpointMap, Family
from smoe.models.families.common import (
    HfConfig,
    check_silu,
    decoder_params,
    decoder_spec,
    gated_mlp_params,
    head_dim_of,
    ignored_tensors,
    layer_windows,
    moe_layer_flags,
    param,
    qwen_experts,
    softmax_router,
)
from smoe.models.rope import rope_spec
from smoe.models.spec import DecoderSpec, DenseSpec, GQASpec, LayerSpec, MoESpec


def parse(config: HfConfig) -> DecoderSpec:
    """Windows: where `use_sliding_window` is set, every other layer below `max_window_layers`; transformers has put
    that into `layer_types`, which a file may also give itself."""
    check_silu(config)
    head_dim = head_dim_of(config)
    rope = rope_spec(config, head_dim)
    router = softmax_router(config, experts_field="num_experts", normalize=config.norm_topk_prob)
    moe = MoESpec(
        router=router,
        ffn=config.moe_intermediate_size,
        shared_ffn=config.shared_expert_intermediate_size,
        shared_gate=True,
    )
    dense = DenseSpec(ffn=config.intermediate_size)
    layers = [
        LayerSpec(
            attention=GQASpec(
                num_heads=config.num_attention_heads,
                num_kv_heads=config.num_key_value_heads,
                head_dim=head_dim,
                scale=head_dim**-0.5,
                rope=rope,
                window=window,
                qkv_bias=config.qkv_bias,
            ),
            mlp=moe if has_experts else dense,
        )
        for window, has_experts in zip(layer_windows(config), moe_layer_flags(config), strict=True)
    ]
    return decoder_spec(config, "qwen2_moe", layers)


def checkpoint_map(spec: DecoderSpec) -> CheckpointMap:
    params = decoder_params(spec)
    experts = {}
    for i in spec.moe_layers:
        ours, mlp, moe = f"layers.{i}.moe", f"model.layers.{i}.mlp", spec.moe(i)
        params[f"{ours}.router.weight"] = param(f"{mlp}.gate.weight", moe.router.num_experts, spec.hidden)
        params |= gated_mlp_params(moe.shared_ffn, spec.hidden, f"{ours}.shared", f"{mlp}.shared_expert")
        params[f"{ours}.shared_gate.weight"] = param(f"{mlp}.shared_expert_gate.weight", 1, spec.hidden)
        experts[i] = qwen_experts(f"{mlp}.experts")
    return CheckpointMap(params=params, experts=experts, ignored=ignored_tensors(spec))


FAMILY = Family("qwen2_moe", ("qwen2_moe",), parse, checkpoint_map)
