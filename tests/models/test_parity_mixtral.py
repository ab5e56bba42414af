"""Mixtral and Phi-3.5-MoE against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from tests.models.edits import drop, put, v4_rope
from tests.models.parity import SmoeRun, assert_parity, write_checkpoint

_MIXTRAL = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "num_local_experts": 7,
    "num_experts_per_tok": 2,
    "vocab_size": 89,
    "max_position_embeddings": 256,
}
_PHI = _MIXTRAL | {"attention_bias": True, "lm_head_bias": True}
_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
_LONGROPE = {
    "short_factor": [1.0, 1.1, 1.2, 1.4],
    "long_factor": [1.5, 2.0, 4.0, 8.0],
    "short_mscale": 1.1,
    "long_mscale": 1.3,
}


@pytest.mark.parametrize(
    ("options", "how"),
    [
        pytest.param({}, {"bf16_floor": 0.95}, id="untied"),
        pytest.param({"tie_word_embeddings": True}, {}, id="tied"),
        pytest.param({}, {"file_dtype": torch.bfloat16}, id="bf16-file"),
        pytest.param({}, {"layout": "stacked"}, id="stacked-experts"),
        pytest.param({"head_dim": 14}, {}, id="own-head-dim"),
        pytest.param({"num_experts_per_tok": 1}, {}, id="k-1"),
        pytest.param({"num_experts_per_tok": 7}, {}, id="k-all"),
        pytest.param({"sliding_window": 16}, {}, id="window-set"),
        pytest.param({"sliding_window": 2}, {}, id="window-2"),
        pytest.param({}, {"edit_config": drop("sliding_window")}, id="window-absent"),
        pytest.param({}, {"edit_config": v4_rope(None, 1e6)}, id="rope-v4-default"),
        pytest.param({}, {"edit_config": drop("rope_parameters")}, id="rope-absent"),
        pytest.param(
            {"head_dim": 8}, {"edit_config": v4_rope({"rope_type": "llama3", **_LLAMA3})}, id="rope-v4-llama3"
        ),
        pytest.param(
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, **_LLAMA3}}, {}, id="rope-v5-llama3"
        ),
        pytest.param(
            {"head_dim": 8},
            {"edit_config": v4_rope({"type": "longrope", **_LONGROPE}, original_max_position_embeddings=80)},
            id="rope-v4-longrope-crossed-while-decoding",
        ),
        pytest.param(
            {"head_dim": 8},
            {"edit_config": v4_rope({"type": "longrope", **_LONGROPE}, original_max_position_embeddings=32)},
            id="rope-v4-longrope-crossed-in-the-prompt",
        ),
    ],
)
def test_mixtral(options: dict[str, Any], how: dict[str, Any], tmp_path: Path) -> None:
    assert_parity(AutoConfig.for_model("mixtral", **(_MIXTRAL | options)), tmp_path, **({"bf16_floor": None} | how))


def test_a_window_of_0_is_no_window(tmp_path: Path) -> None:
    """transformers fails on it, so the reference is the model without one."""
    tokens = torch.arange(40)
    config = AutoConfig.for_model("mixtral", **_MIXTRAL)
    plain, _ = SmoeRun(write_checkpoint(config, tmp_path), torch.float32).run(tokens, 30)
    zero = write_checkpoint(config, tmp_path, edit_config=put(sliding_window=0))
    assert torch.equal(SmoeRun(zero, torch.float32).run(tokens, 30)[0], plain)


@pytest.mark.parametrize(
    ("options", "how"),
    [
        pytest.param({}, {"bf16_floor": 0.95}, id="untied"),
        pytest.param({"tie_word_embeddings": True}, {}, id="tied"),
        pytest.param({"attention_bias": False, "lm_head_bias": False}, {}, id="no-biases"),
        pytest.param({}, {"layout": "stacked"}, id="stacked-experts"),
        pytest.param({"router_jitter_noise": 0.3}, {}, id="jitter-0.3"),
        pytest.param({"router_jitter_noise": 0.0}, {}, id="jitter-0"),
        pytest.param({"num_local_experts": 2}, {}, id="k-all"),
        pytest.param({"sliding_window": 16}, {}, id="window-set"),
        pytest.param(
            {},
            {"edit_config": v4_rope({"type": "longrope", **_LONGROPE, "original_max_position_embeddings": 80})},
            id="rope-v4-longrope-crossed-while-decoding",
        ),
        pytest.param(
            {},
            {"edit_config": v4_rope({"type": "longrope", **_LONGROPE, "original_max_position_embeddings": 32})},
            id="rope-v4-longrope-crossed-in-the-prompt",
        ),
    ],
)
def test_phi35_moe(options: dict[str, Any], how: dict[str, Any], tmp_path: Path) -> None:
    assert_parity(AutoConfig.for_model("phimoe", **(_PHI | options)), tmp_path, **({"bf16_floor": None} | how))
