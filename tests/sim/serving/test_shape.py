"""Sizes of models: published totals, files that are wrong, and what the loader of the real thing holds."""

import json
import re
from pathlib import Path

import pytest

from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError
from smoe.engine.plan import plan_memory
from smoe.models.loading import open_checkpoint
from smoe.sim.serving.shape import open_shape, read_shape, shape_names


@pytest.mark.parametrize(("name", "billions"), [("deepseek-v2", 236), ("mixtral-8x7b", 46.7)])
def test_published_sizes(name: str, billions: float) -> None:
    assert open_shape(name).params_of_device(1) / 1e9 == pytest.approx(billions, rel=0.003)


def test_the_built_in_model_as_it_is_loaded() -> None:
    checkpoint = open_checkpoint("builtin")
    shape = open_shape(str(checkpoint.folder))
    plan = plan_memory(checkpoint, EngineConfig(dtype="float32"))
    assert shape.expert_params * 2 == plan.expert_bytes
    assert (shape.moe_layers, shape.num_experts) == (plan.num_moe_layers, plan.num_experts)
    assert shape.kv_values_of_device(1) * shape.layers * 4 == plan.kv_row_bytes
    # Weights stay as the checkpoint has them, bf16. Norms are left out; an embedding that is the head counts twice.
    experts = shape.moe_layers * shape.num_experts * shape.expert_params
    dense = shape.params_of_device(1) - experts - (shape.vocab * shape.hidden if checkpoint.spec.tied_head else 0)
    assert dense * 2 == pytest.approx(plan.dense_bytes, rel=0.01)


def test_a_device_has_its_share() -> None:
    shape = open_shape("mixtral-8x7b")
    whole = shape.layers * shape.hidden * shape.num_experts
    assert shape.params_of_device(8) - whole == pytest.approx((shape.params_of_device(1) - whole) / 8)
    assert [shape.kv_values_of_device(n) for n in (1, 8, 16)] == [2048, 256, 256]
    assert open_shape("deepseek-v2").kv_values_of_device(8) == 576, "one latent row for all heads"


WRONG = [
    ({"hidden_size": None}, "missing key hidden_size"),
    ({"hidden_size": "4096"}, "hidden_size: '4096' (integer >= 1)"),
    ({"num_local_experts": 0}, "num_local_experts: 0 (integer >= 1)"),
    ({"first_k_dense_replace": 32}, "first_k_dense_replace: 32 (below num_hidden_layers, 32)"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_file_that_is_wrong(change: dict, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    raw = {
        **dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 32),
        **dict.fromkeys(("num_local_experts", "intermediate_size"), 8),
        "hidden_size": 4096,
        "vocab_size": 100,
        "num_experts_per_tok": 2,
        **change,
    }
    path.write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_shape(path, "x")


def test_a_name_that_is_none(tmp_path: Path) -> None:
    assert shape_names() == ["deepseek-v2", "mixtral-8x7b"]
    with pytest.raises(ConfigError, match=r"one of deepseek-v2, mixtral-8x7b"):
        open_shape("gpt-9")
    (tmp_path / "x.json").write_text("[")
    with pytest.raises(ConfigError, match="a readable JSON file"):
        open_shape(str(tmp_path / "x.json"))
