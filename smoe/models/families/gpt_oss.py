"""GPT-OSS: attention sinks, windows on every other layer, biases everywhere, clamped SwiGLU, softmax of the chosen."""

from smoe.models.checkpoint import CheckpointMap, ExpertNames, Family
from smoe.models.families.common import (
    HfConfig,
    check_silu,
    check_top_k,
    decoder_params,
    decoder_spec,
    head_dim_of,
    ignored_tensors,
    layer_windows,
    param,
)
from smoe.models.rope import rope_spec
from smoe.models.spec import DecoderSpec, GQASpec, LayerSpec, MoESpec, RouterSpec


def parse(config: HfConfig) -> DecoderSpec:
    """Absent `rope_scaling` and `rope_parameters` mean YaRN with factor 32 here, unlike everywhere else."""
    check_silu(config)
    head_dim = head_dim_of(config)
    rope = rope_spec(config, head_dim)
    check_top_k(config.num_experts_per_tok, config.num_local_experts, experts_field="num_local_experts")
    moe = MoESpec(
        router=RouterSpec(
            num_experts=config.num_local_experts,
            top_k=config.num_experts_per_tok,
            scoring="softmax_selected",
            normalize=False,
            logit_bias=True,
        ),
        ffn=config.intermediate_size,
        activation="gptoss",
        expert_bias=True,
        gptoss_limit=config.swiglu_limit,
        gptoss_alpha=config.swiglu_alpha,
    )
    layers = [
        LayerSpec(
            attention=GQASpec(
                num_heads=config.num_attention_heads,
                num_kv_heads=config.num_key_value_heads,
                head_dim=head_dim,
                scale=head_dim**-0.5,
                rope=rope,
                window=window,
                qkv_bias=config.attention_bias,
                out_bias=config.attention_bias,
                sinks=True,
            ),
            mlp=moe,
        )
        for window in layer_windows(config)
    ]
    return decoder_spec(config, "gpt_oss", layers)


def checkpoint_map(spec: DecoderSpec) -> CheckpointMap:
    params = decoder_params(spec)
    experts = {}
    for i in spec.moe_layers:
        ours, mlp, num_experts = f"layers.{i}.moe", f"model.layers.{i}.mlp", spec.moe(i).router.num_experts
        params[f"{ours}.router.weight"] = param(f"{mlp}.router.weight", num_experts, spec.hidden)
        params[f"{ours}.router.bias"] = param(f"{mlp}.router.bias", num_experts)
        names = {"gate_up": "gate_up_proj", "down": "down_proj"}
        names |= {f"{key}_bias": f"{name}_bias" for key, name in names.items()}
        experts[i] = ExpertNames(gptoss={key: f"{mlp}.experts.{name}" for key, name in names.items()})
    return CheckpointMap(params=params, experts=experts, ignored=ignored_tensors(spec))


FAMILY = Family("gpt_oss", ("gpt_oss",), parse, checkpoint_map)
