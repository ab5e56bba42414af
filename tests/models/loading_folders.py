"""Model folders with random weights for the tests of loading, named and shaped as the family's map asks."""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file

from smoe.models.families.registry import family_for
from smoe.models.loading.config import read_config

QWEN3 = {
    "model_type": "qwen3_moe",
    "hidden_size": 24,
    "intermediate_size": 40,
    "moe_intermediate_size": 10,
    "num_hidden_layers": 3,
    "mlp_only_layers": [1],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "sliding_window": 8,
    "tie_word_embeddings": False,
}


def write_config(folder: Path, config: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))


def tensor_shapes(folder: Path, *, layout: str = "split") -> dict:
    """Names and shapes for the config.json of `folder`, experts in `layout`."""
    model_type, config = read_config(folder)
    family = family_for(model_type)
    spec = family.parse(config)
    checkpoint_map = family.checkpoint_map(spec)
    named = {s.name: s.shape for p in checkpoint_map.params.values() for s in p.sources}
    for layer, names in checkpoint_map.experts.items():
        moe, d = spec.moe(layer), spec.hidden
        e, f = moe.router.num_experts, moe.ffn
        if layout == "split":
            shapes = {"gate": (f, d), "up": (f, d), "down": (d, f)}
            named |= {t.format(e=i): shapes[key] for i in range(e) for key, t in names.split.items()}
        elif layout == "stacked":
            named |= {names.stacked["gate_up"]: (e, 2 * f, d), names.stacked["down"]: (e, d, f)}
        else:
            shapes = {"gate_up": (e, d, 2 * f), "down": (e, f, d), "gate_up_bias": (e, 2 * f), "down_bias": (e, d)}
            named |= {names.gptoss[key]: shape for key, shape in shapes.items()}
    return named


def random_tensors(folder: Path, *, layout: str = "split", dtype=torch.float32, seed: int = 0) -> dict:
    """Tensors for the config.json of `folder`, experts in `layout`."""
    generator = torch.Generator().manual_seed(seed)
    shapes = tensor_shapes(folder, layout=layout)
    return {name: (0.1 * torch.randn(shape, generator=generator)).to(dtype) for name, shape in shapes.items()}


def write_sparse(folder: Path, shapes: dict, dtype: str, itemsize: int) -> int:
    """One file of zeros that takes no disk; returns the bytes of its tensors."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + itemsize * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    return offset


def write_shards(folder: Path, tensors: dict, num_shards: int = 1) -> None:
    """One file, or several and an index."""
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for i in range(num_shards):
        name = f"model-{i + 1:05d}-of-{num_shards:05d}.safetensors"
        part = dict(list(tensors.items())[i::num_shards])
        save_file(part, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def make_folder(
    folder: Path, config: dict = QWEN3, *, layout: str = "split", dtype=torch.float32, num_shards=1
) -> dict:
    """Writes a whole folder and returns its tensors."""
    write_config(folder, config)
    tensors = random_tensors(folder, layout=layout, dtype=dtype)
    write_shards(folder, tensors, num_shards)
    return tensors
