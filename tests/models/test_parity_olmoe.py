"""OLMoE against transformers."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from tests.models.edits import drop, v4_rope
from tests.models.parity import assert_parity

_OLMOE = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "num_experts": 9,
    "num_experts_per_tok": 4,
    "vocab_size": 89,
    "max_position_embeddings": 256,
}


@pytest.mark.parametrize(
    ("options", "how"),
    [
        pytest.param({}, {"bf16_floor": 0.95}, id="untied"),
        pytest.param({"tie_word_embeddings": True}, {}, id="tied"),
        pytest.param({}, {"layout": "stacked"}, id="stacked-experts"),
        pytest.param({"num_key_value_heads": 6}, {}, id="one-kv-head-a-head"),
        pytest.param({"clip_qkv": 0.7}, {}, id="clipped"),
        pytest.param({"attention_bias": True}, {}, id="attention-bias"),
        pytest.param({"norm_topk_prob": True}, {}, id="normalized"),
        pytest.param({"norm_topk_prob": True}, {"edit_config": drop("norm_topk_prob")}, id="normalized-absent"),
        pytest.param({"num_experts_per_tok": 1}, {}, id="k-1"),
        pytest.param({"num_experts_per_tok": 9}, {}, id="k-all"),
        pytest.param({}, {"edit_config": v4_rope({"type": "dynamic", "factor": 2.0})}, id="rope-v4-dynamic"),
        pytest.param(
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}, {}, id="rope-v5-linear"
        ),
    ],
)
def test_olmoe(options: dict[str, Any], how: dict[str, Any], tmp_path: Path) -> None:
    assert_parity(AutoConfig.for_model("olmoe", **(_OLMOE | options)), tmp_path, **({"bf16_floor": None} | how))
