"""A Qwen3-MoE folder as llama.cpp's file format, tensor by tensor, values as they are (bf16 stays bf16)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

_PLAIN = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
}
_EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
_F32 = ("norm.weight", "ffn_gate_inp.weight")  # llama.cpp wants norms and routers so


def write_gguf(folder: Path, path: Path) -> None:
    """Needs the `gguf` package. Peak memory: one matrix of all experts of a layer."""
    import gguf

    config = json.loads((folder / "config.json").read_text())
    source = _Source(folder)
    writer = gguf.GGUFWriter(path, "qwen3moe")
    _describe(writer, config)
    plan = list(_plan(config, source))
    for name, shape, _ in plan:
        kind = gguf.GGMLQuantizationType.F32 if name.endswith(_F32) else gguf.GGMLQuantizationType.BF16
        item = 4 if name.endswith(_F32) else 2
        nbytes = item * int(torch.Size(shape).numel())
        writer.add_tensor_info(name, shape, np.dtype(np.float32 if item == 4 else np.uint16), nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, shape, names in plan:
        parts = [source.read(found) for found in names]
        tensor = parts[0] if len(parts) == 1 else torch.stack(parts)
        assert list(tensor.shape) == list(shape)
        wide = tensor.float() if name.endswith(_F32) else tensor.bfloat16()
        writer.write_tensor_data(wide.contiguous().view(torch.uint8).numpy())
    writer.close()


def _describe(writer: Any, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")


def _plan(config: dict[str, Any], source: "_Source") -> Iterator[tuple[str, list[int], list[str]]]:
    """(name, shape, tensors of the folder: one, or one an expert)."""
    for theirs, ours in _PLAIN.items():
        yield ours, source.shape(theirs), [theirs]
    for layer in range(config["num_hidden_layers"]):
        for theirs, ours in _LAYER.items():
            name = f"model.layers.{layer}.{theirs}.weight"
            yield f"blk.{layer}.{ours}.weight", source.shape(name), [name]
        for theirs, ours in _EXPERTS.items():
            names = [f"model.layers.{layer}.mlp.experts.{e}.{theirs}.weight" for e in range(config["num_experts"])]
            yield f"blk.{layer}.{ours}.weight", [len(names), *source.shape(names[0])], names


class _Source:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]

    def read(self, name: str) -> torch.Tensor:
        with self._open(name) as file:
            tensor: torch.Tensor = file.get_tensor(name)
            return tensor

    def shape(self, name: str) -> list[int]:
        with self._open(name) as file:
            return list(file.get_slice(name).get_shape())

    def _open(self, name: str) -> Any:
        from safetensors import safe_open

        return safe_open(self._folder / self._file_of[name], "pt")
