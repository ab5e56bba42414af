"""What `parse` refuses, and rules that a config leaves unsaid."""

from typing import Any

import pytest
from transformers import AutoConfig

from smoe.core.errors import CheckpointError
from smoe.models.families.registry import family_for, supported_model_types
from smoe.models.spec import DecoderSpec, DenseSpec, GQASpec, MoESpec

_SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "vocab_size": 89,
    "num_experts_per_tok": 2,
}
_EXPERTS_FIELD = {
    "mixtral": "num_local_experts",
    "phimoe": "num_local_experts",
    "qwen2_moe": "num_experts",
    "qwen3_moe": "num_experts",
    "olmoe": "num_experts",
    "gpt_oss": "num_local_experts",
}
FAMILIES = sorted(_EXPERTS_FIELD)


def _parse(model_type: str, **fields: Any) -> DecoderSpec:
    return family_for(model_type).parse(AutoConfig.for_model(model_type, **(_SIZES | fields)))


def _windows(spec: DecoderSpec) -> list[int | None]:
    return [layer.attention.window for layer in spec.layers if isinstance(layer.attention, GQASpec)]


@pytest.mark.parametrize("model_type", supported_model_types())
def test_the_registry_finds_every_family(model_type: str) -> None:
    assert model_type in family_for(model_type).model_types


def test_an_unknown_model_type_lists_what_there_is() -> None:
    with pytest.raises(CheckpointError, match=r"model_type: 'llama' \(one of .*mixtral.*qwen3_moe"):
        family_for("llama")


@pytest.mark.parametrize("model_type", sorted(set(FAMILIES) - {"phimoe"}))
@pytest.mark.parametrize("top_k", [0, 9])
def test_top_k_lies_between_1_and_the_number_of_experts(model_type: str, top_k: int) -> None:
    field = _EXPERTS_FIELD[model_type]
    with pytest.raises(CheckpointError, match=rf"num_experts_per_tok: {top_k} \(from 1 to {field} = 8\)"):
        _parse(model_type, num_experts_per_tok=top_k, **{field: 8})


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_act": "gelu"}, r"hidden_act: 'gelu' \(silu\)"),
        ({"num_key_value_heads": 4}, r"num_key_value_heads: 4 \(a divisor of num_attention_heads = 6\)"),
        ({"num_key_value_heads": 12}, r"num_key_value_heads: 12 \(a divisor"),
        ({"num_hidden_layers": 0}, r"num_hidden_layers: 0 \(at least 1\)"),
    ],
)
def test_fields_that_do_not_fit(model_type: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        _parse(model_type, **fields)


@pytest.mark.parametrize(
    ("model_type", "fields", "message"),
    [
        ("phimoe", {"num_experts_per_tok": 1}, r"num_experts_per_tok: 1 \(2: all that the sparse mixer"),
        ("phimoe", {"num_local_experts": 1}, r"num_local_experts: 1 \(at least 2\)"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, r"decoder_sparse_step: 0 \(at least 1\)"),
        ("qwen3_moe", {"mlp_only_layers": [0, 1, 2, 3]}, "no layer has experts"),
        ("qwen2_moe", {"decoder_sparse_step": 5}, "no layer has experts"),
        ("mixtral", {"sliding_window": -1}, "sliding_window: -1"),
        ("mixtral", {"hidden_size": 42}, r"head_dim: 7 \(even"),
        (
            "gpt_oss",
            {"layer_types": ["full_attention"] * 3 + ["chunked_attention"]},
            "layer_types: 'chunked_attention'",
        ),
        ("olmoe", {"clip_qkv": -1.0}, r"clip_qkv: -1.0 \(null or above 0\)"),
    ],
)
def test_fields_of_one_family(model_type: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        _parse(model_type, **fields)


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [("mixtral", True), ("qwen2_moe", False), ("qwen3_moe", False), ("olmoe", False), ("gpt_oss", False)],
)
def test_normalisation_where_the_config_is_silent(model_type: str, expected: bool) -> None:
    router = _parse(model_type).moe(0).router
    assert router.normalize is expected
    assert router.scale == 1.0


def test_mixtral_normalises_whatever_a_file_says() -> None:
    assert _parse("mixtral", norm_topk_prob=False).moe(0).router.normalize is True


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("mixtral", {"sliding_window": None}, [None] * 4),
        ("mixtral", {"sliding_window": 0}, [None] * 4),
        ("mixtral", {"sliding_window": 9}, [9] * 4),
        ("phimoe", {"sliding_window": 9}, [9] * 4),
        ("qwen3_moe", {"sliding_window": 9}, [None] * 4),
        ("qwen3_moe", {"sliding_window": 9, "use_sliding_window": True}, [9] * 4),
        ("qwen3_moe", {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 2}, [9] * 4),
        ("qwen2_moe", {"sliding_window": 9}, [None] * 4),
        ("qwen2_moe", {"sliding_window": 9, "use_sliding_window": True}, [9, None, 9, None]),
        ("qwen2_moe", {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 2}, [9] + [None] * 3),
        ("olmoe", {"sliding_window": 9}, [None] * 4),
        ("gpt_oss", {}, [128, None, 128, None]),
        ("gpt_oss", {"sliding_window": 0}, [None] * 4),
    ],
)
def test_windows(model_type: str, fields: dict[str, Any], expected: list[int | None]) -> None:
    assert _windows(_parse(model_type, **fields)) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"mlp_only_layers": [0, 2]}, [1, 3]),
        ({"decoder_sparse_step": 2}, [1, 3]),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, [1]),
    ],
)
@pytest.mark.parametrize("model_type", ["qwen2_moe", "qwen3_moe"])
def test_which_layers_have_experts(model_type: str, fields: dict[str, Any], expected: list[int]) -> None:
    spec = _parse(model_type, moe_intermediate_size=12, **fields)
    assert list(spec.moe_layers) == expected
    for layer in spec.layers:
        assert layer.mlp.ffn == (12 if isinstance(layer.mlp, MoESpec) else 20)
        assert isinstance(layer.mlp, MoESpec | DenseSpec)


@pytest.mark.parametrize(("eos", "expected"), [(None, ()), (3, (3,)), ([3, 5], (3, 5))])
def test_end_tokens_come_alone_or_in_a_list(eos: int | list[int] | None, expected: tuple[int, ...]) -> None:
    assert _parse("qwen3_moe", eos_token_id=eos).eos_token_ids == expected
