"""DeepSeek-V3, R1 and Moonlight: sigmoid scores, a bias for selection only, groups scored by their best two."""

from dataclasses import replace

from smoe.models.checkpoint import Family
from smoe.models.families.common import HfConfig, check_top_k, decoder_spec, reject
from smoe.models.families.deepseek_v2 import checkpoint_map, deepseek_layers, expert_groups
from smoe.models.spec import DecoderSpec, RouterSpec


def parse(config: HfConfig) -> DecoderSpec:
    for field, value in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if getattr(config, field, value) != value:
            raise reject(field, getattr(config, field), value)
    groups, top_groups = expert_groups(config)
    num_experts, top_k = config.n_routed_experts, config.num_experts_per_tok or 0
    check_top_k(top_k, num_experts, experts_field="n_routed_experts")
    if groups > 1 and num_experts // groups < 2:
        raise reject("n_group", groups, f"groups of at least 2 of the {num_experts} experts: the best two are summed")
    router = RouterSpec(
        num_experts=num_experts,
        top_k=top_k,
        scoring="sigmoid",
        normalize=bool(config.norm_topk_prob),
        scale=config.routed_scaling_factor,
        selection_bias=True,
        num_groups=groups,
        top_groups=top_groups,
        group_score="top2_sum",
        normalize_eps=1e-20,
    )
    layers = deepseek_layers(config, router, interleaved=bool(config.rope_interleave))
    return replace(decoder_spec(config, "deepseek_v3", layers), mtp_layers=config.num_mtp_layers)


FAMILY = Family("deepseek_v3", ("deepseek_v3",), parse, checkpoint_map)
