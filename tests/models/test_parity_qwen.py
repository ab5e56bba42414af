"""Qwen2-MoE and Qwen3-MoE against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from smoe.models.loading import open_checkpoint
from tests.models.edits import drop, v4_rope
from tests.models.parity import assert_parity, write_checkpoint

_SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 56,
    "moe_intermediate_size": 20,
    "num_experts": 10,
    "num_experts_per_tok": 3,
    "vocab_size": 89,
    "max_position_embeddings": 256,
}
_QWEN3 = _SIZES | {"head_dim": 10}
_QWEN2 = _SIZES | {"shared_expert_intermediate_size": 28}
_YARN = {"factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("options", "how"),
    [
        pytest.param({}, {"bf16_floor": 0.95}, id="untied"),
        pytest.param({"tie_word_embeddings": True}, {}, id="tied"),
        pytest.param({}, {"file_dtype": torch.bfloat16}, id="bf16-file"),
        pytest.param({}, {"layout": "stacked"}, id="stacked-experts"),
        pytest.param({"norm_topk_prob": True}, {}, id="normalized"),
        pytest.param({"norm_topk_prob": True}, {"edit_config": drop("norm_topk_prob")}, id="normalized-absent"),
        pytest.param({"num_experts_per_tok": 1, "norm_topk_prob": True}, {}, id="k-1-normalized"),
        pytest.param({"num_experts_per_tok": 1}, {}, id="k-1"),
        pytest.param({"num_experts_per_tok": 10}, {}, id="k-all"),
        pytest.param({"num_experts": 300, "num_hidden_layers": 1}, {}, id="more-than-256-experts"),
        pytest.param({"mlp_only_layers": [0]}, {}, id="dense-first-layer"),
        pytest.param({"decoder_sparse_step": 2, "num_hidden_layers": 4}, {}, id="every-second-layer"),
        pytest.param(
            {"decoder_sparse_step": 2, "mlp_only_layers": [1], "num_hidden_layers": 4}, {}, id="step-and-mlp-only"
        ),
        pytest.param({"attention_bias": True}, {}, id="attention-bias"),
        pytest.param({"use_sliding_window": True, "sliding_window": 16}, {}, id="window-set"),
        pytest.param({"use_sliding_window": True, "sliding_window": None}, {}, id="window-null"),
        pytest.param({"use_sliding_window": False, "sliding_window": 16}, {}, id="window-unused"),
        pytest.param({"sliding_window": 16}, {"edit_config": drop("use_sliding_window")}, id="window-flag-absent"),
        pytest.param({}, {"edit_config": drop("sliding_window")}, id="window-absent"),
        pytest.param({}, {"edit_config": v4_rope(None, 5000.0)}, id="rope-v4-default"),
        pytest.param({"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}, {}, id="rope-v5-default"),
        pytest.param({}, {"edit_config": v4_rope({"type": "yarn", **_YARN})}, id="rope-v4-yarn-type"),
        pytest.param({}, {"edit_config": v4_rope({"rope_type": "yarn", **_YARN})}, id="rope-v4-yarn"),
        pytest.param({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, **_YARN}}, {}, id="rope-v5-yarn"),
    ],
)
def test_qwen3_moe(options: dict[str, Any], how: dict[str, Any], tmp_path: Path) -> None:
    assert_parity(AutoConfig.for_model("qwen3_moe", **(_QWEN3 | options)), tmp_path, **({"bf16_floor": None} | how))


@pytest.mark.parametrize(
    ("options", "how"),
    [
        pytest.param({}, {"bf16_floor": 0.95}, id="untied"),
        pytest.param({"tie_word_embeddings": True, "qkv_bias": False}, {}, id="tied-no-bias"),
        pytest.param({}, {"layout": "stacked"}, id="stacked-experts"),
        pytest.param({"norm_topk_prob": True, "num_experts_per_tok": 10}, {}, id="k-all-normalized"),
        pytest.param({"mlp_only_layers": [0, 2]}, {}, id="dense-layers"),
        pytest.param(
            {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2, "num_hidden_layers": 4},
            {},
            id="windows-below-max-window-layers",
        ),
        pytest.param({"sliding_window": 16, "max_window_layers": 2}, {}, id="window-unused"),
        pytest.param({"sliding_window": 0}, {}, id="window-0"),
        pytest.param({"sliding_window": None}, {}, id="window-null"),
        pytest.param({}, {"edit_config": drop("sliding_window", "layer_types")}, id="window-absent"),
        pytest.param({}, {"edit_config": v4_rope({"type": "linear", "factor": 3.0})}, id="rope-v4-linear"),
        pytest.param(
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}}, {}, id="rope-v5-dynamic"
        ),
    ],
)
def test_qwen2_moe(options: dict[str, Any], how: dict[str, Any], tmp_path: Path) -> None:
    assert_parity(AutoConfig.for_model("qwen2_moe", **(_QWEN2 | options)), tmp_path, **({"bf16_floor": None} | how))


def test_the_number_of_experts_goes_by_either_name(tmp_path: Path) -> None:
    def older(raw: dict[str, Any]) -> None:
        raw["num_experts"] = raw.pop("num_local_experts")

    folder = write_checkpoint(AutoConfig.for_model("qwen3_moe", **_QWEN3), tmp_path, edit_config=older)
    assert open_checkpoint(folder).spec.moe(0).router.num_experts == 10
