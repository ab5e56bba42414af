"""DeepSeek-V2, V3 and Moonlight against transformers, and what config.json of the hub may say otherwise."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig
from transformers.models.deepseek_v2 import modeling_deepseek_v2

from smoe.core.errors import CheckpointError
from smoe.models.loading import open_checkpoint
from smoe.models.spec import DecoderSpec, MoESpec
from tests.models.edits import Edit, drop, put, v4_rope
from tests.models.parity import assert_parity, write_checkpoint

_SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "kv_lora_rank": 20,
    "q_lora_rank": 28,
    "qk_nope_head_dim": 14,
    "qk_rope_head_dim": 10,
    "v_head_dim": 18,
    "intermediate_size": 56,
    "moe_intermediate_size": 22,
    "n_routed_experts": 24,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "rms_norm_eps": 1e-3,  # far from the latent norms' own constant
    "vocab_size": 89,
    "max_position_embeddings": 256,
}
_V2 = _SIZES | {"routed_scaling_factor": 1.7}
_V3 = _SIZES | {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5, "num_mtp_layers": 0}
_GROUPS = {"n_group": 8, "topk_group": 4}
_LIMITED = {"topk_method": "group_limited_greedy", **_GROUPS}
_YARN = {
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.9,
}


@pytest.mark.parametrize(
    ("options", "how"),
    [
        pytest.param({}, {}, id="greedy"),
        pytest.param({"q_lora_rank": None}, {"layout": "stacked"}, id="no-query-rank-stacked"),
        pytest.param(_LIMITED, {}, id="groups"),
        pytest.param(_LIMITED | {"topk_group": 1}, {}, id="one-of-the-groups-and-all-of-its-experts"),
        pytest.param({"tie_word_embeddings": True, "attention_bias": True}, {}, id="tied-bias"),
        pytest.param({"first_k_dense_replace": 0, "num_experts_per_tok": 1}, {}, id="no-dense-layer-k-1"),
        pytest.param({"first_k_dense_replace": 2, "num_experts_per_tok": 24}, {}, id="two-dense-layers-k-all"),
        pytest.param({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, **_YARN}}, {}, id="yarn-v5"),
        pytest.param({}, {"edit_config": v4_rope({"type": "yarn", **_YARN})}, id="yarn-v4"),
    ],
)
def test_deepseek_v2(options: dict[str, Any], how: dict[str, Any], tmp_path: Path) -> None:
    assert_parity(AutoConfig.for_model("deepseek_v2", **(_V2 | options)), tmp_path, **how)


@pytest.mark.parametrize(
    ("options", "how"),
    [
        pytest.param({}, {}, id="one-group"),
        pytest.param(_GROUPS, {}, id="groups"),
        pytest.param(_GROUPS | {"norm_topk_prob": False}, {"layout": "stacked"}, id="not-normalized-stacked"),
        pytest.param({"norm_topk_prob": False}, {"edit_config": drop("norm_topk_prob")}, id="normalized-absent"),
        pytest.param({"num_experts_per_tok": 1, "q_lora_rank": None}, {}, id="k-1-no-query-rank"),
        pytest.param({"n_routed_experts": 264, "num_hidden_layers": 2, **_GROUPS}, {}, id="more-than-256-experts"),
        pytest.param({"first_k_dense_replace": 0, "tie_word_embeddings": True}, {}, id="no-dense-layer-tied"),
        pytest.param({"first_k_dense_replace": 2, "attention_bias": True}, {}, id="two-dense-layers-bias"),
        pytest.param({"rope_interleave": False}, {}, id="rotary-halves"),
        pytest.param({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, **_YARN}}, {}, id="yarn-v5"),
        pytest.param({}, {"edit_config": v4_rope({"type": "yarn", **_YARN})}, id="yarn-v4"),
    ],
)
def test_deepseek_v3(options: dict[str, Any], how: dict[str, Any], tmp_path: Path) -> None:
    assert_parity(AutoConfig.for_model("deepseek_v3", **(_V3 | options)), tmp_path, **how)


def test_sparse_layers_at_a_frequency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remote code's `moe_layer_freq`, which transformers' own class does not read: taught to it here."""
    layer_class = modeling_deepseek_v2.DeepseekV2DecoderLayer
    plain_init = layer_class.__init__

    def init(self: Any, config: Any, layer_idx: int) -> None:
        plain_init(self, config, layer_idx)
        if layer_idx % config.moe_layer_freq:
            self.mlp = modeling_deepseek_v2.DeepseekV2MLP(config)

    monkeypatch.setattr(layer_class, "__init__", init)
    config = AutoConfig.for_model("deepseek_v2", **(_V2 | {"num_hidden_layers": 5, "moe_layer_freq": 2}))
    assert_parity(config, tmp_path)
    assert open_checkpoint(tmp_path / "model").spec.moe_layers == (2, 4)


@pytest.mark.parametrize("n_group", [None, 0])
def test_no_groups_by_any_name(n_group: int | None, tmp_path: Path) -> None:
    """null and 0, which transformers cannot run, mean what 1 means."""
    one = _spec_of(_V3, tmp_path / "1")
    assert _spec_of(_V3, tmp_path / "2", put(n_group=n_group, topk_group=n_group)) == one
    assert one.moe(1).router.num_groups == 1


def test_fields_of_the_hub(tmp_path: Path) -> None:
    """V2-Lite's config.json, whose extra fields say what its class leaves out."""
    code = {"AutoConfig": "configuration_deepseek.DeepseekV2Config"}
    hub = put(scoring_func="softmax", aux_loss_alpha=0.001, seq_aux=True, ep_size=1, moe_layer_freq=1, auto_map=code)
    spec = _spec_of(_V2, tmp_path, hub)
    assert isinstance(spec.layers[1].mlp, MoESpec)
    assert (spec.layers[1].mlp.shared_ffn, spec.layers[1].mlp.router.scale) == (44, 1.7)


def test_layers_for_several_tokens_are_ignored(tmp_path: Path) -> None:
    """V3's checkpoint has one layer more than it runs."""
    folder = write_checkpoint(AutoConfig.for_model("deepseek_v3", **_V3), tmp_path)
    _edit(folder, put(num_hidden_layers=2, num_nextn_predict_layers=1))
    assert len(open_checkpoint(folder).spec.layers) == 2
    _edit(folder, put(num_nextn_predict_layers=0))
    with pytest.raises(CheckpointError, match=r"model\.layers\.2\..* is not part of a deepseek_v3 model"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("sizes", "change", "message"),
    [
        (_V3, {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}}, "quantization_config.*'fp8'"),
        (_V3, {"n_group": 7}, r"n_group: 7 \(a divisor of n_routed_experts = 24\)"),
        (_V3, {"n_group": 24, "topk_group": 4}, "n_group: 24 .*groups of at least 2"),
        (_V3, {"n_group": 8, "topk_group": 9}, r"topk_group: 9 \(from 1 to n_group = 8\)"),
        (_V3, {"n_group": 8, "topk_group": None}, "topk_group: None"),
        (_V3, {"n_group": 12, "topk_group": 1}, r"num_experts_per_tok: 3 \(at most the 2 experts of 1 groups\)"),
        (_V3, {"num_experts_per_tok": 25}, "num_experts_per_tok: 25"),
        (_V3, {"scoring_func": "softmax"}, r"scoring_func: 'softmax' \(sigmoid\)"),
        (_V3, {"hidden_act": "gelu"}, r"hidden_act: 'gelu' \(silu\)"),
        (_V2, {"topk_method": "noaux_tc"}, "topk_method: 'noaux_tc'"),
        (_V2, {"num_experts_per_tok": None}, "num_experts_per_tok: 0"),
        (_V2, {"mlp_bias": True}, r"mlp_bias: True \(false\)"),
        (_V2, {"moe_layer_freq": 0}, "moe_layer_freq: 0"),
    ],
)
def test_config_errors(sizes: dict[str, Any], change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        _spec_of(sizes, tmp_path, put(**change))
    assert "\n" not in str(caught.value)


def _spec_of(sizes: dict[str, Any], folder: Path, edit: Edit | None = None) -> DecoderSpec:
    name = "deepseek_v2" if sizes is _V2 else "deepseek_v3"
    return open_checkpoint(write_checkpoint(AutoConfig.for_model(name, **sizes), folder, edit_config=edit)).spec


def _edit(folder: Path, edit: Edit) -> None:
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    edit(raw)
    path.write_text(json.dumps(raw))
