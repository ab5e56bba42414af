"""Qwen3-Next: gated delta nets with a full-attention layer at intervals, norms that add one, a gated shared expert."""

from functools import partial

import torch

from smoe.models.checkpoint import CheckpointMap, Family, Param, Source
from smoe.models.families.common import (
    HfConfig,
    check_silu,
    decoder_params,
    decoder_spec,
    gated_mlp_params,
    head_dim_of,
    ignored_tensors,
    moe_layer_flags,
    param,
    qwen_experts,
    reject,
    softmax_router,
)
from smoe.models.rope import rope_spec
from smoe.models.spec import DecoderSpec, DeltaSpec, DenseSpec, GQASpec, LayerSpec, MoESpec

_KINDS = ("linear_attention", "full_attention")


def parse(config: HfConfig) -> DecoderSpec:
    check_silu(config)
    for kind in config.layer_types:
        if kind not in _KINDS:
            raise reject("layer_types", kind, " or ".join(_KINDS))
    attention: dict[str, DeltaSpec | GQASpec] = {
        "linear_attention": _delta_spec(config),
        "full_attention": _gqa_spec(config),
    }
    moe = MoESpec(
        router=softmax_router(config, experts_field="num_experts", normalize=config.norm_topk_prob),
        ffn=config.moe_intermediate_size,
        shared_ffn=config.shared_expert_intermediate_size,
        shared_gate=True,
    )
    dense = DenseSpec(ffn=config.intermediate_size)
    layers = [
        LayerSpec(attention=attention[kind], mlp=moe if flag else dense)
        for kind, flag in zip(config.layer_types, moe_layer_flags(config), strict=True)
    ]
    return decoder_spec(config, "qwen3_next", layers, norm="rms_plus_one")


def _gqa_spec(config: HfConfig) -> GQASpec:
    head_dim = head_dim_of(config)
    factor = (config.rope_parameters or {}).get("partial_rotary_factor", 1.0)
    return GQASpec(
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=rope_spec(config, head_dim, partial_factor=factor),
        qk_norm="head",
        qkv_bias=config.attention_bias,
        out_bias=config.attention_bias,
        output_gate=True,
    )


def _delta_spec(config: HfConfig) -> DeltaSpec:
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    if keys < 1 or values % keys:
        raise reject("linear_num_value_heads", values, f"a multiple of linear_num_key_heads = {keys}")
    if config.linear_conv_kernel_dim < 1:
        raise reject("linear_conv_kernel_dim", config.linear_conv_kernel_dim, "at least 1")
    return DeltaSpec(
        num_key_heads=keys,
        num_value_heads=values,
        key_head_dim=config.linear_key_head_dim,
        value_head_dim=config.linear_value_head_dim,
        conv_kernel=config.linear_conv_kernel_dim,
    )


def checkpoint_map(spec: DecoderSpec) -> CheckpointMap:
    params, experts = decoder_params(spec), {}
    for i, layer in enumerate(spec.layers):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        if isinstance(layer.attention, DeltaSpec):
            params |= _delta_params(layer.attention, spec.hidden, f"{ours}.attn", f"{theirs}.linear_attn")
        elif isinstance(layer.attention, GQASpec):
            params |= _gqa_params(layer.attention, spec.hidden, f"{ours}.attn", f"{theirs}.self_attn")
        if not isinstance(layer.mlp, MoESpec):
            continue
        moe, mlp = layer.mlp, f"{theirs}.mlp"
        params[f"{ours}.moe.router.weight"] = param(f"{mlp}.gate.weight", moe.router.num_experts, spec.hidden)
        params |= gated_mlp_params(moe.shared_ffn, spec.hidden, f"{ours}.moe.shared", f"{mlp}.shared_expert")
        params[f"{ours}.moe.shared_gate.weight"] = param(f"{mlp}.shared_expert_gate.weight", 1, spec.hidden)
        experts[i] = qwen_experts(f"{mlp}.experts")
    return CheckpointMap(params=params, experts=experts, ignored=(*ignored_tensors(spec), "mtp."))


def _gqa_params(attention: GQASpec, hidden: int, ours: str, theirs: str) -> dict[str, Param]:
    heads, width = attention.num_heads, attention.head_dim
    rows = {
        "q_proj": 2 * heads * width,
        "k_proj": attention.num_kv_heads * width,
        "v_proj": attention.num_kv_heads * width,
    }
    build = partial(gate_rows_last, width)
    params = {
        f"{ours}.qkv.weight": Param(tuple(Source(f"{theirs}.{n}.weight", (r, hidden)) for n, r in rows.items()), build),
        f"{ours}.out.weight": param(f"{theirs}.o_proj.weight", hidden, heads * width),
        f"{ours}.q_norm.weight": param(f"{theirs}.q_norm.weight", width),
        f"{ours}.k_norm.weight": param(f"{theirs}.k_norm.weight", width),
    }
    if attention.qkv_bias:
        params[f"{ours}.qkv.bias"] = Param(tuple(Source(f"{theirs}.{n}.bias", (r,)) for n, r in rows.items()), build)
    if attention.out_bias:
        params[f"{ours}.out.bias"] = param(f"{theirs}.o_proj.bias", hidden)
    return params


def _delta_params(attention: DeltaSpec, hidden: int, ours: str, theirs: str) -> dict[str, Param]:
    heads = attention.num_value_heads
    keys, values = attention.num_key_heads * attention.key_head_dim, heads * attention.value_head_dim
    mixed = (
        Source(f"{theirs}.in_proj_qkvz.weight", (2 * keys + 2 * values, hidden)),
        Source(f"{theirs}.in_proj_ba.weight", (2 * heads, hidden)),
    )
    conv = Source(f"{theirs}.conv1d.weight", (2 * keys + values, 1, attention.conv_kernel))
    return {
        f"{ours}.in.weight": Param(mixed, partial(split_mixed_rows, attention)),
        f"{ours}.conv.weight": Param((conv,), lambda tensors: tensors[0].squeeze(1)),
        f"{ours}.a_log": Param((Source(f"{theirs}.A_log", (heads,)),), keep_float32=True),
        f"{ours}.dt_bias": Param((Source(f"{theirs}.dt_bias", (heads,)),), keep_float32=True),
        f"{ours}.norm.weight": param(f"{theirs}.norm.weight", attention.value_head_dim),
        f"{ours}.out.weight": param(f"{theirs}.out_proj.weight", hidden, values),
    }


def gate_rows_last(width: int, tensors: list[torch.Tensor]) -> torch.Tensor:
    """q_proj holds each head's query and then its gate, of `width` rows each; ours are all of q | k | v | gate."""
    mixed, k, v = tensors
    q, gate = mixed.view(-1, 2, width, *mixed.shape[1:]).unbind(1)
    return torch.cat((q.flatten(0, 1), k, v, gate.flatten(0, 1)))


def split_mixed_rows(attention: DeltaSpec, tensors: list[torch.Tensor]) -> torch.Tensor:
    """in_proj_qkvz and in_proj_ba go by key head (q, k, its values, their z; b, a); ours are q | k | v | z | b | a."""
    each = attention.num_value_heads // attention.num_key_heads
    widths = [attention.key_head_dim] * 2 + [each * attention.value_head_dim] * 2
    qkvz, ba = (t.view(-1, rows, t.shape[1]) for t, rows in zip(tensors, (sum(widths), 2 * each), strict=True))
    parts = [*torch.split(qkvz, widths, dim=1), *torch.split(ba, [each, each], dim=1)]
    return torch.cat([part.flatten(0, 1) for part in parts])


FAMILY = Family("qwen3_next", ("qwen3_next",), parse, checkpoint_map)
