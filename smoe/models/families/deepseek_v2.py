"""DeepSeek-V2 and V2-Lite: latent attention, softmax routing, groups scored by their best expert, shared experts."""

import math
from functools import partial

import torch

from smoe.models.checkpoint import CheckpointMap, Family, Param, Source
from smoe.models.families.common import (
    HfConfig,
    check_silu,
    check_top_k,
    decoder_params,
    decoder_spec,
    gated_mlp_params,
    ignored_tensors,
    param,
    qwen_experts,
    reject,
)
from smoe.models.mla import pack_kv_b
from smoe.models.rope import rope_spec
from smoe.models.spec import DecoderSpec, DenseSpec, LayerSpec, MLASpec, MoESpec, RouterSpec


def parse(config: HfConfig) -> DecoderSpec:
    if config.mlp_bias:
        raise reject("mlp_bias", config.mlp_bias, "false")
    if config.topk_method not in ("greedy", "group_limited_greedy"):
        raise reject("topk_method", config.topk_method, "greedy or group_limited_greedy")
    groups, top_groups = (1, 1) if config.topk_method == "greedy" else expert_groups(config)
    check_top_k(config.num_experts_per_tok or 0, config.n_routed_experts, experts_field="n_routed_experts")
    router = RouterSpec(
        num_experts=config.n_routed_experts,
        top_k=config.num_experts_per_tok,
        scoring="softmax",
        normalize=False,  # transformers does not read norm_topk_prob here, which every released model has off
        scale=config.routed_scaling_factor,
        num_groups=groups,
        top_groups=top_groups,
        group_score="max",
    )
    return decoder_spec(config, "deepseek_v2", deepseek_layers(config, router, interleaved=True))


def expert_groups(config: HfConfig) -> tuple[int, int]:
    """(groups, groups that a token may use); `n_group` null, 0 and 1 all say that there are none."""
    num_experts, groups, top_groups = config.n_routed_experts, config.n_group or 1, config.topk_group or 0
    if groups == 1:
        return 1, 1
    if groups < 1 or num_experts % groups:
        raise reject("n_group", groups, f"a divisor of n_routed_experts = {num_experts}")
    if not 1 <= top_groups <= groups:
        raise reject("topk_group", config.topk_group, f"from 1 to n_group = {groups}")
    reachable = num_experts // groups * top_groups
    if (config.num_experts_per_tok or 0) > reachable:
        raise reject(
            "num_experts_per_tok", config.num_experts_per_tok, f"at most the {reachable} experts of {top_groups} groups"
        )
    return groups, top_groups


def deepseek_layers(config: HfConfig, router: RouterSpec, *, interleaved: bool) -> list[LayerSpec]:
    """The first layers are dense, then every `moe_layer_freq`-th has experts (counted from layer 0)."""
    check_silu(config)
    frequency = getattr(config, "moe_layer_freq", 1)
    if frequency < 1:
        raise reject("moe_layer_freq", frequency, "at least 1")
    attention = _mla_spec(config, interleaved=interleaved)
    shared_ffn = config.moe_intermediate_size * (config.n_shared_experts or 0)
    moe = MoESpec(router=router, ffn=config.moe_intermediate_size, shared_ffn=shared_ffn)
    dense = DenseSpec(ffn=config.intermediate_size)
    flags = [i >= config.first_k_dense_replace and i % frequency == 0 for i in range(config.num_hidden_layers)]
    return [LayerSpec(attention=attention, mlp=moe if flag else dense) for flag in flags]


def _mla_spec(config: HfConfig, *, interleaved: bool) -> MLASpec:
    nope, rope = config.qk_nope_head_dim, config.qk_rope_head_dim
    if rope < 2 or rope % 2:
        raise reject("qk_rope_head_dim", rope, "even, at least 2: rotary positions turn pairs of values")
    return MLASpec(
        num_heads=config.num_attention_heads,
        q_lora_rank=config.q_lora_rank,
        kv_lora_rank=config.kv_lora_rank,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=config.v_head_dim,
        scale=(nope + rope) ** -0.5 * _temperature(config.rope_parameters or {}) ** 2,
        rope=rope_spec(config, rope, interleaved=interleaved),
        bias=config.attention_bias,
    )


def _temperature(rope: dict[str, float]) -> float:
    """YaRN's factor of attention scores, which DeepSeek applies to the scale and takes out of cos and sin."""
    all_dims, factor = rope.get("mscale_all_dim"), rope.get("factor") or 1.0
    if rope.get("rope_type", "default") == "default" or not all_dims or factor <= 1:
        return 1.0
    return 0.1 * all_dims * math.log(factor) + 1.0


def checkpoint_map(spec: DecoderSpec) -> CheckpointMap:
    params, experts = decoder_params(spec), {}
    for i, layer in enumerate(spec.layers):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        assert isinstance(layer.attention, MLASpec)
        params |= mla_params(layer.attention, spec.hidden, f"{ours}.attn", f"{theirs}.self_attn")
        if not isinstance(layer.mlp, MoESpec):
            continue
        router, gate = layer.mlp.router, f"{theirs}.mlp.gate"
        weight = Source(f"{gate}.weight", (router.num_experts, spec.hidden))
        params[f"{ours}.moe.router.weight"] = Param((weight,), keep_float32=True)
        if router.selection_bias:
            bias = Source(f"{gate}.e_score_correction_bias", (router.num_experts,))
            params[f"{ours}.moe.router.selection_bias"] = Param((bias,), keep_float32=True)
        if layer.mlp.shared_ffn:
            params |= gated_mlp_params(
                layer.mlp.shared_ffn, spec.hidden, f"{ours}.moe.shared", f"{theirs}.mlp.shared_experts"
            )
        experts[i] = qwen_experts(f"{theirs}.mlp.experts")
    # Layers after the last one predict further tokens.
    extra = tuple(f"model.layers.{len(spec.layers) + i}." for i in range(spec.mtp_layers))
    return CheckpointMap(params=params, experts=experts, ignored=(*ignored_tensors(spec), *extra))


def mla_params(attention: MLASpec, hidden: int, ours: str, theirs: str) -> dict[str, Param]:
    """The rotary rows come in two halves and kv_b comes apart, as smoe.models.mla wants them."""
    rope, latent, rank = attention.qk_rope_head_dim, attention.kv_lora_rank, attention.q_lora_rank
    width = attention.qk_nope_head_dim + rope
    q_rows, values = attention.num_heads * width, attention.num_heads * attention.v_head_dim

    def rotary(part: str, rows: int, head: int, *shape: int) -> Param:
        source = (Source(f"{theirs}.{part}", (rows, *shape)),)
        return Param(source, partial(_in_halves, head, rope)) if attention.rope.interleaved else Param(source)

    kv_b = Source(f"{theirs}.kv_b_proj.weight", (q_rows - attention.num_heads * rope + values, latent))
    params = {
        f"{ours}.kv_a.weight": rotary("kv_a_proj_with_mqa.weight", latent + rope, latent + rope, hidden),
        f"{ours}.kv_a_norm.weight": param(f"{theirs}.kv_a_layernorm.weight", latent),
        f"{ours}.kv_b.weight": Param((kv_b,), partial(pack_kv_b, attention)),
        f"{ours}.out.weight": param(f"{theirs}.o_proj.weight", hidden, values),
    }
    if attention.bias:
        params[f"{ours}.kv_a.bias"] = rotary("kv_a_proj_with_mqa.bias", latent + rope, latent + rope)
        params[f"{ours}.out.bias"] = param(f"{theirs}.o_proj.bias", hidden)
    if rank is None:
        params[f"{ours}.q.weight"] = rotary("q_proj.weight", q_rows, width, hidden)
        return params
    params[f"{ours}.q_a.weight"] = param(f"{theirs}.q_a_proj.weight", rank, hidden)
    params[f"{ours}.q_a_norm.weight"] = param(f"{theirs}.q_a_layernorm.weight", rank)
    params[f"{ours}.q_b.weight"] = rotary("q_b_proj.weight", q_rows, width, rank)
    if attention.bias:
        params[f"{ours}.q_a.bias"] = param(f"{theirs}.q_a_proj.bias", rank)
    return params


def _in_halves(head: int, rope: int, tensors: list[torch.Tensor]) -> torch.Tensor:
    """Every `head` rows end in `rope` rotary ones: from pairs (2i, 2i + 1) to pairs (i, i + rope / 2)."""
    per_head = tensors[0].view(-1, head, *tensors[0].shape[1:])
    straight, turned = torch.split(per_head, [head - rope, rope], dim=1)
    return torch.cat((straight, turned[:, 0::2], turned[:, 1::2]), dim=1).flatten(0, 1)


FAMILY = Family("deepseek_v2", ("deepseek_v2",), parse, checkpoint_map)
