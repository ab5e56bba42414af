"""OLMoE: q and k norms over the whole projection, optional clipping of q, k and v; `norm_topk_prob` decides.

The config has no window: transformers gives OLMoE full attention whatever `sliding_window` a file may hold.
"""

from smoe.models.checkpoint import CheckpointMap, Family
from smoe.models.families.common import (
    HfConfig,
    check_silu,
    decoder_params,
    decoder_spec,
    head_dim_of,
    ignored_tensors,
    param,
    qwen_experts,
    reject,
    softmax_router,
)
from smoe.models.rope import rope_spec
from smoe.models.spec import DecoderSpec, GQASpec, LayerSpec, MoESpec


def parse(config: HfConfig) -> DecoderSpec:
    check_silu(config)
    head_dim = head_dim_of(config)
    if config.clip_qkv is not None and config.clip_qkv <= 0:
        raise reject("clip_qkv", config.clip_qkv, "null or above 0")
    attention = GQASpec(
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=rope_spec(config, head_dim),
        qk_norm="full",
        qkv_bias=config.attention_bias,
        out_bias=config.attention_bias,
        clip_qkv=config.clip_qkv,
    )
    router = softmax_router(config, experts_field="num_experts", normalize=config.norm_topk_prob)
    layer = LayerSpec(attention=attention, mlp=MoESpec(router=router, ffn=config.intermediate_size))
    return decoder_spec(config, "olmoe", [layer] * config.num_hidden_layers)


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


FAMILY = Family("olmoe", ("olmoe",), parse, checkpoint_map)
