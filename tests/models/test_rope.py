"""Rotary tables against transformers' own embedding modules, and their independence of how a prompt is cut."""

import dataclasses
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRotaryEmbedding

from smoe.core.errors import CheckpointError
from smoe.models.batch import Batch, StepContext
from smoe.models.rope import RopeTables, rope_spec
from smoe.models.spec import DecoderSpec, DenseSpec, GQASpec, LayerSpec, RopeSpec

_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 10,
}


def _config(max_positions: int = 4096, **parameters: Any) -> Any:
    return AutoConfig.for_model(
        "qwen3_moe",
        hidden_size=48,
        num_attention_heads=6,
        head_dim=8,
        max_position_embeddings=max_positions,
        rope_parameters={"rope_theta": 10000.0, **parameters},
    )


def _tables(rope: RopeSpec, max_positions: int = 4096) -> RopeTables:
    attention = GQASpec(num_heads=6, num_kv_heads=6, head_dim=8, scale=1.0, rope=rope)
    spec = DecoderSpec(
        family="test",
        hidden=48,
        vocab=9,
        layers=(LayerSpec(attention=attention, mlp=DenseSpec(ffn=8)),),
        norm="rms",
        norm_eps=1e-6,
        tied_head=False,
        max_positions=max_positions,
    )
    return RopeTables(spec)


def _cos_sin(tables: RopeTables, rope: RopeSpec, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    return tables.cos_sin(tables.key(rope), StepContext(batch))


def _span(count: int, past: int = 0, start: int = 0) -> tuple[list[int], int, int, int]:
    return [0] * count, start, past, 0


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({"rope_type": "default", "rope_theta": 777.0}, id="default"),
        pytest.param({"rope_type": "linear", "factor": 3.0}, id="linear"),
        pytest.param({"rope_type": "dynamic", "factor": 3.0}, id="dynamic"),
        pytest.param({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, id="yarn"),
        pytest.param(
            {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5, "beta_fast": 16.0, "truncate": False},
            id="yarn-options",
        ),
        pytest.param(
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 512,
            },
            id="llama3",
        ),
        pytest.param(_LONGROPE, id="longrope"),
    ],
)
@pytest.mark.parametrize("past", [0, 7, 3000])
def test_equals_transformers(parameters: dict[str, Any], past: int) -> None:
    config = _config(**parameters)
    rope = rope_spec(config, 8)
    cos, sin = _cos_sin(_tables(rope), rope, Batch.build([_span(1, past)]))
    theirs_cos, theirs_sin = Qwen3MoeRotaryEmbedding(config)(torch.zeros(1), torch.tensor([[past]]))
    assert torch.equal(cos, theirs_cos[0, :, :4])
    assert torch.equal(sin, theirs_sin[0, :, :4])


def test_bits_do_not_depend_on_when_the_table_grew() -> None:
    rope = rope_spec(_config(rope_type="default"), 8)
    grown, at_once = _tables(rope), _tables(rope)
    for past in (0, 1023, 1500, 4000):
        _cos_sin(grown, rope, Batch.build([_span(1, past)]))
    batch = Batch.build([_span(4096)])
    for a, b in zip(_cos_sin(grown, rope, batch), _cos_sin(at_once, rope, batch), strict=True):
        assert torch.equal(a, b)


def test_equal_specs_share_a_table_and_a_step_looks_up_once() -> None:
    rope = rope_spec(_config(rope_type="default"), 8)
    tables = _tables(rope)
    other = dataclasses.replace(rope, attention_factor=2.0)
    assert tables.key(rope) == tables.key(dataclasses.replace(rope)) != tables.key(other)
    context = StepContext(Batch.build([_span(3)]))
    assert tables.cos_sin(tables.key(rope), context) is tables.cos_sin(tables.key(rope), context)


def test_longrope_goes_by_the_prompt_and_then_by_the_position() -> None:
    rope = rope_spec(_config(**_LONGROPE), 8)
    tables = _tables(rope)
    short = dataclasses.replace(rope, long_inv_freq=None)
    long = dataclasses.replace(short, inv_freq=rope.long_inv_freq or (), attention_factor=rope.long_attention_factor)

    def rows(which: RopeSpec, batch: Batch) -> torch.Tensor:
        return torch.cat(_cos_sin(tables, which, batch), dim=1)

    short_prompt, long_prompt = Batch.build([_span(10)]), Batch.build([_span(11)])
    assert torch.equal(rows(rope, short_prompt), rows(short, short_prompt))
    assert torch.equal(rows(rope, long_prompt), rows(long, long_prompt))
    whole = rows(rope, long_prompt)
    chunks = [Batch.build([_span(n, past)], prompt_lens=[11]) for n, past in ((4, 0), (7, 4))]
    assert torch.equal(torch.cat([rows(rope, chunk) for chunk in chunks]), whole)
    # Generated rows, several at a time as a verification has them: 9 is short, 10 and 11 are long.
    several = Batch.build([_span(3, past=9)])
    expected = torch.cat([rows(short, several)[:1], rows(long, several)[1:]])
    assert torch.equal(rows(rope, several), expected)
    mixed = Batch.build([_span(10), _span(11, start=10), _span(3, past=9, start=21)])
    assert torch.equal(rows(rope, mixed), torch.cat([rows(rope, b) for b in (short_prompt, long_prompt, several)]))


def test_a_part_of_each_head() -> None:
    rope = rope_spec(_config(rope_type="default"), 8, partial_factor=0.5)
    assert rope.rotary_dim == 4
    assert len(rope.inv_freq) == 2


def test_unknown_kinds_are_named() -> None:
    config = _config(rope_type="default")
    config.rope_parameters["rope_type"] = "spiral"
    with pytest.raises(CheckpointError, match=r"rope_parameters.rope_type: 'spiral' \(one of default, linear"):
        rope_spec(config, 8)


def test_incomplete_parameters_are_named() -> None:
    config = _config(rope_type="default")
    config.rope_parameters |= {"rope_type": "longrope", "short_factor": [1.0] * 4}
    with pytest.raises(CheckpointError, match=r"rope_parameters: .*longrope.*long_factor"):
        rope_spec(config, 8)
