"""What is loaded are the checkpoint's values, in the dtypes that `storage_dtype` promises."""

import itertools

import pytest
import torch

from smoe.core.errors import ConfigError
from smoe.models.loading import BUILTIN, model_folder, open_checkpoint
from smoe.models.loading.dtypes import storage_dtype
from tests.models.loading_folders import GPT_OSS, QWEN3, make_folder, write_config, write_shards

DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("compute", DTYPES, ids=str)
def test_params_are_the_checkpoints_values_in_the_promised_dtype(tmp_path, num_shards, stored, compute):
    tensors = make_folder(tmp_path, dtype=stored, num_shards=num_shards)
    checkpoint = open_checkpoint(tmp_path)
    params = checkpoint.params(dtype=compute)

    qkv = torch.cat([tensors[f"model.layers.2.self_attn.{n}_proj.weight"] for n in "qkv"])
    matrix_dtype = torch.bfloat16 if torch.bfloat16 in (stored, compute) else torch.float32
    assert params["layers.2.attn.qkv.weight"].dtype is matrix_dtype
    assert torch.equal(params["layers.2.attn.qkv.weight"], qkv.to(matrix_dtype))
    assert torch.equal(params["norm.weight"], tensors["model.norm.weight"].to(compute))
    assert torch.equal(
        params["layers.1.mlp.down.weight"], tensors["model.layers.1.mlp.down_proj.weight"].to(matrix_dtype)
    )
    assert checkpoint.params_nbytes(dtype=compute) == sum(p.nbytes for p in params.values())


def test_a_param_larger_than_one_read_keeps_every_value(tmp_path):
    """vocab * hidden * 4 bytes = 9.6 MB is more than two pieces, and no multiple of a piece."""
    tensors = make_folder(tmp_path, QWEN3 | {"vocab_size": 100_003})
    checkpoint = open_checkpoint(tmp_path)
    embed = tensors["model.embed_tokens.weight"]
    assert torch.equal(checkpoint.params(dtype=torch.float32)["embed"], embed)
    assert torch.equal(checkpoint.params(dtype=torch.bfloat16)["embed"], embed.bfloat16())


def test_storage_dtype_of_each_case():
    f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16
    assert storage_dtype(bf16, f32, matrix=True) is bf16
    assert storage_dtype(bf16, f32, matrix=False) is f32
    assert storage_dtype(f16, f32, matrix=True) is f32
    for stored, compute in itertools.product((f32, bf16, f16), (f32, bf16)):
        assert storage_dtype(stored, compute, matrix=True, keep_float32=True) is f32
    for stored in (f32, f16):
        assert storage_dtype(stored, bf16, matrix=True) is bf16


def test_compute_in_fp16_is_refused(tmp_path):
    make_folder(tmp_path)
    with pytest.raises(ConfigError, match=r"dtype: 'float16' \(float32 or bfloat16\)"):
        open_checkpoint(tmp_path).params(dtype=torch.float16)


def test_fingerprint_follows_content_and_not_files(tmp_path):
    tensors = make_folder(tmp_path / "one")
    make_folder(tmp_path / "three", num_shards=3)
    first = open_checkpoint(tmp_path / "one").fingerprint
    assert open_checkpoint(tmp_path / "three").fingerprint == first

    tensors["model.norm.weight"] = tensors["model.norm.weight"] + 1
    write_config(tmp_path / "other", QWEN3)
    write_shards(tmp_path / "other", tensors)
    assert open_checkpoint(tmp_path / "other").fingerprint != first


def test_tied_head_may_be_stored_beside_the_embedding(tmp_path):
    config = QWEN3 | {"tie_word_embeddings": True}
    write_config(tmp_path, config)
    tensors = make_folder(tmp_path, config)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    write_shards(tmp_path, tensors)
    params = open_checkpoint(tmp_path).params(dtype=torch.float32)
    assert torch.equal(params["embed"], tensors["lm_head.weight"])
    assert "head.weight" not in params


def test_builtin_is_the_packaged_model():
    checkpoint = open_checkpoint(BUILTIN)
    assert checkpoint.folder == model_folder(BUILTIN)
    assert (checkpoint.spec.hidden, len(checkpoint.spec.layers), checkpoint.spec.vocab) == (192, 6, 4096)
    assert checkpoint.params(dtype=torch.float32)["embed"].shape == (4096, 192)


def test_gptoss_has_its_biases_and_sinks(tmp_path):
    tensors = make_folder(tmp_path, GPT_OSS, layout="gptoss", dtype=torch.bfloat16)
    params = open_checkpoint(tmp_path).params(dtype=torch.float32)
    assert torch.equal(params["layers.1.attn.sinks"], tensors["model.layers.1.self_attn.sinks"].float())
    assert params["layers.1.moe.router.bias"].dtype is torch.float32
