"""Qwen3-Next against transformers: delta nets, gated full attention, and both at intervals."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from smoe.core.errors import CheckpointError
from smoe.models.loading import open_checkpoint
from smoe.models.spec import DeltaSpec, GQASpec
from tests.models.edits import drop, put, v4_rope
from tests.models.parity import assert_parity, write_checkpoint

_SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 14,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 56,
    "moe_intermediate_size": 22,
    "shared_expert_intermediate_size": 26,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "full_attention_interval": 3,
    "vocab_size": 89,
    "max_position_embeddings": 256,
}
_YARN = {"factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("options", "how"),
    [
        pytest.param({}, {}, id="every-third-layer-is-full"),
        pytest.param({"tie_word_embeddings": True, "full_attention_interval": 2}, {"layout": "stacked"}, id="tied"),
        pytest.param({"layer_types": ["full_attention"] + ["linear_attention"] * 3}, {}, id="layer-types"),
        pytest.param({"linear_num_value_heads": 3, "linear_conv_kernel_dim": 2}, {}, id="a-value-head-a-key-head"),
        pytest.param({"linear_num_value_heads": 9, "linear_conv_kernel_dim": 7}, {}, id="three-value-heads-a-key-head"),
        pytest.param({"norm_topk_prob": False, "num_experts_per_tok": 1}, {}, id="k-1-not-normalized"),
        pytest.param({"norm_topk_prob": False}, {"edit_config": drop("norm_topk_prob")}, id="normalized-absent"),
        pytest.param({"num_experts": 300, "num_hidden_layers": 3}, {}, id="more-than-256-experts"),
        pytest.param({"mlp_only_layers": [0], "decoder_sparse_step": 2}, {}, id="dense-layers"),
        pytest.param({"attention_bias": True}, {}, id="attention-bias"),
        pytest.param({}, {"edit_config": v4_rope(None, 5000.0, partial_rotary_factor=0.5)}, id="rope-v4-half"),
        pytest.param({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, **_YARN}}, {}, id="yarn-v5"),
        pytest.param({}, {"edit_config": v4_rope({"type": "yarn", **_YARN})}, id="yarn-v4"),
    ],
)
def test_qwen3_next(options: dict[str, Any], how: dict[str, Any], tmp_path: Path) -> None:
    assert_parity(AutoConfig.for_model("qwen3_next", **(_SIZES | options)), tmp_path, **how)


def test_layer_kinds_by_interval(tmp_path: Path) -> None:
    """The hub's config.json has the interval, and no list of kinds."""
    edits = (drop("layer_types"), put(full_attention_interval=4))
    folder = write_checkpoint(
        AutoConfig.for_model("qwen3_next", **(_SIZES | {"full_attention_interval": 4})),
        tmp_path,
        edit_config=lambda raw: [edit(raw) for edit in edits] and None,
    )
    kinds = [type(layer.attention) for layer in open_checkpoint(folder).spec.layers]
    assert kinds == [DeltaSpec, DeltaSpec, DeltaSpec, GQASpec]


def test_tensors_for_several_tokens_are_ignored(tmp_path: Path) -> None:
    folder = write_checkpoint(AutoConfig.for_model("qwen3_next", **_SIZES), tmp_path)
    (file,) = folder.glob("*.safetensors")
    save_file(load_file(file) | {"mtp.fc.weight": torch.ones(3, 2)}, file)
    open_checkpoint(folder)
    save_file(load_file(file) | {"mtq.fc.weight": torch.ones(3, 2)}, file)
    with pytest.raises(CheckpointError, match=r"mtq\.fc\.weight"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"linear_num_value_heads": 7}, r"linear_num_value_heads: 7 \(a multiple of linear_num_key_heads = 3\)"),
        ({"layer_types": ["sliding_attention"] * 4}, r"layer_types: 'sliding_attention' \(linear_attention or full_"),
        ({"linear_conv_kernel_dim": 0}, r"linear_conv_kernel_dim: 0 \(at least 1\)"),
        ({"num_experts_per_tok": 13}, "num_experts_per_tok: 13"),
    ],
)
def test_config_errors(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write_checkpoint(AutoConfig.for_model("qwen3_next", **_SIZES), tmp_path, edit_config=put(**change))
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)
