"""GPT-OSS against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from tests.models.edits import drop, v4_rope
from tests.models.parity import assert_parity

_GPT_OSS = {
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 20,
    "num_local_experts": 7,
    "num_experts_per_tok": 3,
    "vocab_size": 89,
    "max_position_embeddings": 256,
    "sliding_window": 16,
}
_YARN = {"factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("options", "how"),
    [
        pytest.param({}, {"bf16_floor": 0.95}, id="untied"),
        pytest.param({"tie_word_embeddings": True}, {}, id="tied"),
        pytest.param({}, {"file_dtype": torch.bfloat16}, id="bf16-file"),
        pytest.param({}, {"layout": "stacked"}, id="saved-as-in-memory"),
        pytest.param({"swiglu_limit": 0.5, "swiglu_alpha": 1.1}, {}, id="low-clamp"),
        pytest.param({"num_experts_per_tok": 1}, {}, id="k-1"),
        pytest.param({"num_experts_per_tok": 7}, {}, id="k-all"),
        pytest.param({"attention_bias": False}, {}, id="no-attention-bias"),
        pytest.param({}, {"edit_config": drop("layer_types")}, id="layer-types-absent"),
        pytest.param({"layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, {}, id="layer-types-set"),
        pytest.param({}, {"edit_config": drop("sliding_window")}, id="window-absent"),
        pytest.param({}, {"edit_config": drop("rope_parameters")}, id="rope-absent"),
        pytest.param({}, {"edit_config": v4_rope({"rope_type": "yarn", **_YARN}, 150000.0)}, id="rope-v4-yarn"),
    ],
)
def test_gpt_oss(options: dict[str, Any], how: dict[str, Any], tmp_path: Path) -> None:
    assert_parity(AutoConfig.for_model("gpt_oss", **(_GPT_OSS | options)), tmp_path, **({"bf16_floor": None} | how))
