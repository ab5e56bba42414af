"""Mixtral: the chosen weights are always renormalised, one window for all layers, no biases."""

from smoe.models.checkpoint import CheckpointMap, Family
from smoe.models.families.common import (
    HfConfig,
    check_silu,
    decoder_params,
    decoder_spec,
    head_dim_of,
    ignored_tensors,
    param,
    softmax_router,
    split_and_stacked_experts,
    window_of,
)
from smoe.models.rope import rope_spec
from smoe.models.spec import DecoderSpec, GQASpec, LayerSpec, MoESpec


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
    )
    router = softmax_router(config, experts_field="num_local_experts", normalize=True)
    layer = LayerSpec(attention=attention, mlp=MoESpec(router=router, ffn=config.intermediate_size))
    return decoder_spec(config, "mixtral", [layer] * config.num_hidden_layers)


def checkpoint_map(spec: DecoderSpec) -> CheckpointMap:
    """The stacked layout also renames the module, from `block_sparse_moe` to `mlp`."""
    params = decoder_params(spec)
    experts = {}
    for i in spec.moe_layers:
        old, new = f"model.layers.{i}.block_sparse_moe", f"model.layers.{i}.mlp"
        params[f"layers.{i}.moe.router.weight"] = param(
            f"{old}.gate.weight", spec.moe(i).router.num_experts, spec.hidden, aliases=(f"{new}.gate.weight",)
        )
        experts[i] = split_and_stacked_experts(
            f"{old}.experts", gate="w1", up="w3", down="w2", stacked=f"{new}.experts"
        )
    return CheckpointMap(params=params, experts=experts, ignored=ignored_tensors(spec))


FAMILY = Family("mixtral", ("mixtral",), parse, checkpoint_map)
