"""A folder that is not exactly a checkpoint is refused with a message that names file and tensor."""

import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from smoe.core.errors import CheckpointError
from smoe.models.loading import open_checkpoint
from tests.models.loading_folders import GPT_OSS, QWEN3, make_folder, random_tensors, write_config, write_shards

INDEX = "model.safetensors.index.json"
NORM, EXPERT = "model.layers.1.input_layernorm.weight", "model.layers.2.mlp.experts.3.up_proj.weight"


def refuses(folder, match):
    with pytest.raises(CheckpointError, match=match) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)


def edit_index(folder, change):
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def test_unknown_folder(tmp_path):
    refuses(tmp_path / "nowhere", r"nowhere: no such model folder .*builtin")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (None, r"config\.json: No such file"),
        ("{", r"config\.json: broken JSON"),
        ("[]", r"config\.json: has no model_type"),
        ("{}", r"config\.json: has no model_type"),
        ('{"model_type": "llama"}', r"model_type: 'llama' \(one of .*qwen3_moe"),
    ],
)
def test_bad_config(tmp_path, text, match):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    refuses(tmp_path, match)


def test_config_of_the_wrong_type(tmp_path):
    make_folder(tmp_path)
    write_config(tmp_path, QWEN3 | {"hidden_size": "wide"})
    refuses(tmp_path, r"config\.json: .*hidden_size")


@pytest.mark.parametrize("top_k", [0, 6])
def test_top_k_outside_one_to_all_experts(tmp_path, top_k):
    make_folder(tmp_path)
    write_config(tmp_path, QWEN3 | {"num_experts_per_tok": top_k})
    refuses(tmp_path, rf"num_experts_per_tok: {top_k} .*5")


def test_unsupported_quantisation(tmp_path):
    make_folder(tmp_path)
    write_config(tmp_path, QWEN3 | {"quantization_config": {"quant_method": "fp8"}})
    refuses(tmp_path, r"config\.json: quantization_config 'fp8' is not supported")


def test_no_weights(tmp_path):
    write_config(tmp_path, QWEN3)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    refuses(tmp_path, r"no \*\.safetensors file \(other weight formats are not read\)")


@pytest.mark.parametrize("keep", [0, 5, 8, 100, -1, -1000], ids=lambda k: f"keep{k}")
def test_truncated_shard(tmp_path, keep):
    make_folder(tmp_path, num_shards=2)
    path = tmp_path / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refuses(tmp_path, r"model-00002-of-00002\.safetensors.*truncated")


def test_bytes_behind_the_last_tensor(tmp_path):
    make_folder(tmp_path)
    with open(tmp_path / "model.safetensors", "ab") as file:
        file.write(b"\0" * 16)
    refuses(tmp_path, r"model\.safetensors: has \d+ bytes, but its header describes \d+")


def write_header(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize(
    ("header", "match"),
    [
        (b"not json", "broken safetensors header"),
        (b"[1]", "not an object"),
        (b'{"a":{},"a":{}}', "tensor a is listed twice"),
        ({"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 8]}}, "tensor a has a broken header entry"),
        ({"a": {"dtype": "F32", "shape": [2]}}, "tensor a has a broken header entry"),
        ({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, r"tensor a of shape \[3\] does not fit"),
        ({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [8, 0]}}, r"tensor a of shape \[-2\] does not fit"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, "tensor a starts at byte"),
        ({}, "holds no tensors"),
    ],
)
def test_bad_header(tmp_path, header, match):
    write_config(tmp_path, QWEN3)
    write_header(tmp_path / "model.safetensors", header, b"\0" * 8 if header else b"")
    refuses(tmp_path, match)


def test_index_names_an_absent_file(tmp_path):
    make_folder(tmp_path, num_shards=2)
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    refuses(tmp_path, rf"{INDEX}: tensor \S+ is in model-00001-of-00002\.safetensors, which is missing")


def test_index_names_an_absent_tensor(tmp_path):
    make_folder(tmp_path, num_shards=2)
    edit_index(tmp_path, lambda m: m.update({"model.ghost.weight": "model-00001-of-00002.safetensors"}))
    refuses(tmp_path, rf"{INDEX}: tensor model\.ghost\.weight is not in model-00001-of-00002\.safetensors")


def test_index_puts_a_tensor_into_the_wrong_file(tmp_path):
    make_folder(tmp_path, num_shards=2)
    edit_index(tmp_path, lambda m: m.update({k: "model-00001-of-00002.safetensors" for k in m if k == NORM}))
    edit_index(tmp_path, lambda m: m.update({k: "model-00002-of-00002.safetensors" for k in m if k == EXPERT}))
    refuses(tmp_path, rf"{INDEX}: tensor \S+ is not in model-0000\d-of-00002\.safetensors")


def test_index_leaves_out_a_tensor(tmp_path):
    make_folder(tmp_path, num_shards=2)
    edit_index(tmp_path, lambda m: m.pop(NORM))
    refuses(tmp_path, rf"tensor {NORM} is not listed in {INDEX}")


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", 3])
def test_index_leads_out_of_the_folder(tmp_path, shard):
    make_folder(tmp_path, num_shards=2)
    edit_index(tmp_path, lambda m: m.update({NORM: shard}))
    refuses(tmp_path, rf"tensor {NORM} names .* not a file of this folder")


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": {}}', "[]"])
def test_broken_index(tmp_path, text):
    make_folder(tmp_path, num_shards=2)
    (tmp_path / INDEX).write_text(text)
    refuses(tmp_path, rf"{INDEX}: broken index")


def test_tensor_in_two_shards(tmp_path):
    tensors = make_folder(tmp_path)
    save_file({NORM: tensors[NORM]}, tmp_path / "extra.safetensors")
    refuses(tmp_path, rf"model\.safetensors: tensor {NORM} is also in extra\.safetensors")


def test_numbered_shard_missing_without_an_index(tmp_path):
    make_folder(tmp_path, num_shards=3)
    (tmp_path / INDEX).unlink()
    open_checkpoint(tmp_path)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    refuses(tmp_path, r"model-00002-of-00003\.safetensors: this shard is missing")


@pytest.mark.parametrize("name", [NORM, EXPERT, "model.norm.weight", "lm_head.weight"])
def test_missing_tensor(tmp_path, name):
    tensors = make_folder(tmp_path)
    del tensors[name]
    write_shards(tmp_path, tensors)
    refuses(tmp_path, rf"tensor {name} of shape \[.*\] is missing")


def test_layer_without_experts(tmp_path):
    tensors = make_folder(tmp_path)
    write_shards(tmp_path, {name: t for name, t in tensors.items() if ".layers.2.mlp.experts" not in name})
    refuses(tmp_path, r"model\.layers\.2\.mlp\.experts\.0\.\S+ is missing: layer 2 has no experts")


@pytest.mark.parametrize(
    "name", ["model.layers.3.input_layernorm.weight", "model.layers.0.mlp.experts.5.up_proj.weight"]
)
def test_left_over_tensor(tmp_path, name):
    tensors = make_folder(tmp_path)
    tensors[name] = torch.ones(24)
    write_shards(tmp_path, tensors)
    refuses(tmp_path, rf"model\.safetensors: tensor {name} is not part of a qwen3_moe model .*left over")


def test_both_layouts_at_once(tmp_path):
    tensors = make_folder(tmp_path)
    stacked = random_tensors(tmp_path, layout="stacked")
    tensors["model.layers.2.mlp.experts.down_proj"] = stacked["model.layers.2.mlp.experts.down_proj"]
    write_shards(tmp_path, tensors)
    refuses(tmp_path, r"layer 2 has its experts in two layouts")


@pytest.mark.parametrize("name", [NORM, EXPERT])
def test_wrong_shape(tmp_path, name):
    tensors = make_folder(tmp_path)
    tensors[name] = torch.ones(7, *tensors[name].shape[1:])
    write_shards(tmp_path, tensors)
    refuses(tmp_path, rf"tensor {name} has shape \[7.*the config asks for \[")


@pytest.mark.parametrize("dtype", [torch.int32, torch.float8_e4m3fn, torch.float64], ids=str)
def test_wrong_dtype(tmp_path, dtype):
    tensors = make_folder(tmp_path)
    tensors[EXPERT] = torch.ones(tensors[EXPERT].shape).to(dtype)
    write_shards(tmp_path, tensors)
    refuses(tmp_path, rf"tensor {EXPERT} is {str(dtype).removeprefix('torch.')}, not one of bfloat16, float16, float32")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_values_that_are_not_finite(tmp_path, bad, stored):
    tensors = make_folder(tmp_path, dtype=stored)
    for name in (EXPERT, "model.layers.0.self_attn.v_proj.weight"):
        tensors[name].view(-1)[-1] = bad
    write_shards(tmp_path, tensors)
    checkpoint = open_checkpoint(tmp_path)
    for compute in (torch.float32, torch.bfloat16):
        with pytest.raises(CheckpointError, match=r"v_proj\.weight holds values that are not finite"):
            checkpoint.params(dtype=compute)
        with pytest.raises(CheckpointError, match=rf"{EXPERT} holds values that are not finite"):
            checkpoint.read_layer(2, dtype=compute)
        with pytest.raises(CheckpointError, match=rf"{EXPERT} holds values that are not finite"):
            checkpoint.read_expert(2, 3, dtype=compute)


def test_gptoss_expert_that_is_not_finite(tmp_path):
    tensors = make_folder(tmp_path, GPT_OSS, layout="gptoss")
    name = "model.layers.1.mlp.experts.down_proj_bias"
    tensors[name][2, 5] = float("nan")
    write_shards(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=rf"{name} holds values that are not finite"):
        open_checkpoint(tmp_path).read_layer(1, dtype=torch.float32)


def test_extreme_finite_values_load(tmp_path):
    tensors = make_folder(tmp_path)
    tensors[NORM][:2] = torch.tensor([torch.finfo(torch.float32).max, -torch.finfo(torch.float32).tiny / 4])
    write_shards(tmp_path, tensors)
    assert torch.equal(
        open_checkpoint(tmp_path).params(dtype=torch.float32)["layers.1.attn_norm.weight"], tensors[NORM]
    )


def test_head_that_differs_from_the_embedding_it_is_tied_to(tmp_path):
    tensors = make_folder(tmp_path, QWEN3 | {"tie_word_embeddings": True})
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["lm_head.weight"][-1, -1] += 1
    write_shards(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        open_checkpoint(tmp_path).params(dtype=torch.float32)


def test_file_that_shrinks_after_it_was_opened(tmp_path):
    make_folder(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(CheckpointError, match=r"ends early, at byte \d+ \(truncated\)"):
        checkpoint.params(dtype=torch.float32)
