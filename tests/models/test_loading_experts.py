"""Experts: the same matrices out of every layout, as views of raw bytes where no conversion is needed."""

import pickle
from itertools import pairwise

import pytest
import torch

from smoe.models.loading import open_checkpoint
from smoe.models.loading.mxfp4 import dequantize_rows
from tests.models.loading_folders import GPT_OSS, QWEN3, make_folder, random_tensors, write_config, write_shards

DTYPES = (torch.float32, torch.bfloat16)
FIELDS = ("gate", "up", "down", "gate_bias", "up_bias", "down_bias")


def raw_parts(source, misalign=0):
    """The bytes of each part as a store would hand them over, all in one buffer, `misalign` bytes off."""
    memory = torch.zeros(source.nbytes + misalign, dtype=torch.uint8)
    parts, offset = {}, misalign
    for key, part in source.parts.items():
        with open(part.path, "rb") as file:
            file.seek(part.offset)
            data = torch.frombuffer(bytearray(file.read(part.nbytes)), dtype=torch.uint8)
        memory[offset : offset + part.nbytes] = data
        parts[key] = memory[offset : offset + part.nbytes]
        offset += part.nbytes
    return memory, parts


def assert_same(a, b):
    for field in FIELDS:
        x, y = getattr(a, field), getattr(b, field)
        assert (x is None) == (y is None)
        if x is not None:
            assert x.dtype is y.dtype
            assert torch.equal(x, y), field


def expected(tensors, layout, layer, e):
    prefix = f"model.layers.{layer}.mlp.experts"
    if layout == "split":
        return {key: tensors[f"{prefix}.{e}.{key}_proj.weight"] for key in ("gate", "up", "down")}
    gate_up, down = tensors[f"{prefix}.gate_up_proj"][e], tensors[f"{prefix}.down_proj"][e]
    if layout == "stacked":
        gate, up = gate_up.chunk(2)
        return {"gate": gate, "up": up, "down": down}
    bias = tensors[f"{prefix}.gate_up_proj_bias"][e]
    return {
        "gate": gate_up[:, 0::2].T,
        "up": gate_up[:, 1::2].T,
        "down": down.T,
        "gate_bias": bias[0::2],
        "up_bias": bias[1::2],
        "down_bias": tensors[f"{prefix}.down_proj_bias"][e],
    }


@pytest.mark.parametrize(("config", "layout"), [(QWEN3, "split"), (QWEN3, "stacked"), (GPT_OSS, "gptoss")])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("compute", DTYPES, ids=str)
def test_every_way_to_an_expert_gives_the_checkpoints_values(tmp_path, config, layout, stored, compute):
    tensors = make_folder(tmp_path, config, layout=layout, dtype=stored, num_shards=2)
    checkpoint = open_checkpoint(tmp_path)
    target = torch.bfloat16 if torch.bfloat16 in (stored, compute) else torch.float32
    for layer in checkpoint.spec.moe_layers:
        whole_layer = checkpoint.read_layer(layer, dtype=compute)
        for e, from_arena in enumerate(whole_layer):
            source = pickle.loads(pickle.dumps(checkpoint.expert_source(layer, e)))
            memory, parts = raw_parts(source)
            assembled = source.assemble(parts, compute)
            for key, value in expected(tensors, layout, layer, e).items():
                assert torch.equal(getattr(assembled, key), value.to(target)), key
                assert getattr(assembled, key).is_contiguous()
            assert_same(assembled, from_arena)
            assert_same(assembled, checkpoint.read_expert(layer, e, dtype=compute))
            present = [getattr(assembled, f) for f in FIELDS if getattr(assembled, f) is not None]
            assert source.assembled_nbytes(compute) == sum(t.nbytes for t in present)
            shares = all(t.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr() for t in present)
            assert shares == (not source.converts(compute))


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
def test_pieces_may_lie_at_any_even_address(tmp_path, stored):
    make_folder(tmp_path, dtype=stored)
    source = open_checkpoint(tmp_path).expert_source(2, 4)
    assert_same(
        source.assemble(raw_parts(source)[1], torch.float32), source.assemble(raw_parts(source, 2)[1], torch.float32)
    )


def test_stacked_experts_are_ranges_that_tile_the_two_tensors(tmp_path):
    make_folder(tmp_path, layout="stacked")
    checkpoint = open_checkpoint(tmp_path)
    sources = [checkpoint.expert_source(0, e) for e in range(5)]
    spans = sorted((p.offset, p.offset + p.nbytes) for s in sources for p in s.parts.values())
    for (_, end), (start, _) in pairwise(spans):
        assert end <= start
    assert sum(s.nbytes for s in sources) == 5 * 3 * 10 * 24 * 4
    for source in sources:
        assert source.parts["gate"].offset + source.parts["gate"].nbytes == source.parts["up"].offset


def mxfp4_folder(folder):
    """A GPT-OSS folder with MXFP4 experts, all codes among them; scales are 2^-27 to 2^-2."""
    config = GPT_OSS | {"quantization_config": {"quant_method": "mxfp4"}}
    write_config(folder, config)
    tensors = random_tensors(folder, layout="gptoss", dtype=torch.bfloat16)
    for layer in range(2):
        for key, rows, columns in (("gate_up_proj", 64, 64), ("down_proj", 64, 32)):
            name = f"model.layers.{layer}.mlp.experts.{key}"
            del tensors[name]
            tensors[f"{name}_blocks"] = torch.randint(0, 256, (3, rows, columns // 32, 16), dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.randint(100, 126, (3, rows, columns // 32), dtype=torch.uint8)
    write_shards(folder, tensors)
    return tensors


def test_mxfp4_equals_the_dequantisation_of_transformers(tmp_path):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors = mxfp4_folder(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    prefix = "model.layers.1.mlp.experts"
    gate_up, down = (
        convert_moe_packed_tensors(tensors[f"{prefix}.{key}_blocks"], tensors[f"{prefix}.{key}_scales"])
        for key in ("gate_up_proj", "down_proj")
    )
    for e, experts in enumerate(checkpoint.read_layer(1, dtype=torch.float32)):
        assert torch.equal(experts.gate, gate_up[e][:, 0::2].T)
        assert torch.equal(experts.up, gate_up[e][:, 1::2].T)
        assert torch.equal(experts.down, down[e].T)
        assert torch.equal(experts.up_bias, tensors[f"{prefix}.gate_up_proj_bias"][e][1::2])
        source = checkpoint.expert_source(1, e)
        assert source.converts(torch.float32)
        assert_same(experts, source.assemble(raw_parts(source)[1], torch.float32))


def test_mxfp4_scales_at_both_ends():
    """Code 2 is 1.0; scale 0 is 2^-127, and what lies beyond 2^127 is no number."""
    blocks = torch.full((1, 4, 16), 0x22, dtype=torch.uint8)
    values = dequantize_rows(blocks, torch.tensor([[0, 1, 254, 255]], dtype=torch.uint8)).view(4, 32)
    assert values[:3, 0].tolist() == [2.0**-127, 2.0**-126, 2.0**127]
    assert (values[:3] == values[:3, :1]).all()
    assert not values[3].isfinite().any()
