"""The sizes of a model, for what its steps take: a `config.json` as Hugging Face has it, or a packaged one by name.

Only what costs time or memory is read. Two kinds of attention: with keys and values by head, and latent (DeepSeek).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smoe.core.errors import ConfigError

_FOLDER = Path(__file__).parent.parent.parent / "assets" / "shapes"
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes are in parameters, `..._flops` in multiplications and additions, of one layer.

    Attention: `attention_cut` is divided among devices by heads, `attention_whole` lies on each; a KV row is
    `kv_values`, of which each device holds a share of `kv_heads` whole heads. A pair of a row and one of its context
    takes `pair_flops` over all heads. A feed-forward part of F units is three matrices of hidden x F.
    """

    name: str
    layers: int
    dense_layers: int
    hidden: int
    vocab: int
    attention_cut: int
    attention_whole: int
    kv_values: int
    kv_heads: int
    pair_flops: int
    num_experts: int
    top_k: int
    expert_ffn: int
    shared_ffn: int
    dense_ffn: int

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers

    @property
    def expert_params(self) -> int:
        return 3 * self.hidden * self.expert_ffn

    def params_of_device(self, devices: int) -> float:
        """With attention, vocabulary and experts divided, everything else whole."""
        layer = self.attention_cut / devices + self.attention_whole
        shared = 3 * self.hidden * self.shared_ffn + self.hidden * self.num_experts
        moe = self.num_experts * self.expert_params / devices + shared
        dense = 3 * self.hidden * self.dense_ffn
        vocab = 2 * self.vocab * self.hidden / devices
        return vocab + self.layers * layer + self.moe_layers * moe + self.dense_layers * dense

    def kv_values_of_device(self, devices: int) -> float:
        """Of one row of one layer: a KV head is held by every device that has one of its query heads."""
        return self.kv_values * max(1 / devices, 1 / self.kv_heads)


def shape_names() -> list[str]:
    return sorted(path.name.removesuffix(_SUFFIX) for path in _FOLDER.glob(f"*{_SUFFIX}"))


def open_shape(name: str) -> ModelShape:
    """A packaged one, a config.json or the folder that has it. Raises ConfigError."""
    if name in shape_names():
        return read_shape(_FOLDER / f"{name}{_SUFFIX}", name)
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise ConfigError("model_shape", name, f"a config.json, its folder, or one of {', '.join(shape_names())}")
    return read_shape(path, path.parent.name if path.name == "config.json" else path.stem)


def read_shape(path: Path, name: str) -> ModelShape:
    """Raises ConfigError naming the file, the key, its value and what was expected."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError("model_shape", str(path), f"a readable JSON file: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError("model_shape", str(path), "an object of sizes, as a config.json has")
    keys = _Keys(str(path), raw)
    layers, hidden = keys.count("num_hidden_layers"), keys.count("hidden_size")
    shared = keys.count("n_shared_experts", default=0)
    ffn = keys.count("moe_intermediate_size", "intermediate_size")
    dense_layers = keys.count("first_k_dense_replace", default=0)
    if dense_layers >= layers:
        raise ConfigError(f"{path}: first_k_dense_replace", dense_layers, f"below num_hidden_layers, {layers}")
    return ModelShape(
        name=name,
        layers=layers,
        dense_layers=dense_layers,
        hidden=hidden,
        vocab=keys.count("vocab_size"),
        num_experts=keys.count("n_routed_experts", "num_local_experts", "num_experts"),
        top_k=keys.count("num_experts_per_tok"),
        expert_ffn=ffn,
        shared_ffn=keys.count("shared_expert_intermediate_size", default=shared * ffn),
        dense_ffn=keys.count("intermediate_size") if dense_layers else 0,
        **(_latent(keys, hidden) if raw.get("kv_lora_rank") else _by_head(keys, hidden)),
    )


def _by_head(keys: "_Keys", hidden: int) -> dict[str, int]:
    heads = keys.count("num_attention_heads")
    kv_heads = keys.count("num_key_value_heads", default=heads)
    width = keys.count("head_dim", default=hidden // heads)
    return {
        "attention_cut": hidden * width * (2 * heads + 2 * kv_heads),
        "attention_whole": 0,
        "kv_values": 2 * kv_heads * width,
        "kv_heads": kv_heads,
        "pair_flops": 4 * heads * width,
    }


def _latent(keys: "_Keys", hidden: int) -> dict[str, int]:
    """Attention over the latents themselves, as smoe computes it: all heads share one KV row."""
    heads, latent = keys.count("num_attention_heads"), keys.count("kv_lora_rank")
    rope, nope, value = (keys.count(key) for key in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    low = keys.count("q_lora_rank", default=0)
    query = heads * (nope + rope)
    return {
        "attention_cut": (low or hidden) * query + latent * heads * (nope + value) + heads * value * hidden,
        "attention_whole": hidden * low + hidden * (latent + rope),
        "kv_values": latent + rope,
        "kv_heads": 1,
        "pair_flops": 2 * heads * (2 * latent + rope),
    }


@dataclass(frozen=True, slots=True)
class _Keys:
    path: str
    raw: dict[str, Any]

    def count(self, *names: str, default: int | None = None) -> int:
        """The first of `names` that is there and not null."""
        for name in names:
            value = self.raw.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < (1 if default is None else 0):
                raise ConfigError(f"{self.path}: {name}", value, f"integer >= {1 if default is None else 0}")
            return value
        if default is None:
            raise ConfigError(f"{self.path}: missing key {names[0]}", sorted(self.raw), f"the key {' or '.join(names)}")
        return default
