"""The geometry of a decoder as plain data; a family's `parse` makes it from a Hugging Face config.

Everything that differs between families is a value here, so that the decoder code has no family names in it.
"""

from dataclasses import dataclass, field
from typing import Literal

NormKind = Literal["rms", "rms_plus_one", "layer"]
Activation = Literal["silu", "gptoss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """`inv_freq` has rotary_dim / 2 values. With `long_inv_freq` (longrope) it serves contexts above `original_len`.

    `attention_factor` multiplies cos and sin. `interleaved` pairs (2i, 2i+1) instead of (i, i + rotary_dim/2).
    """

    rotary_dim: int
    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0
    interleaved: bool = False
    long_inv_freq: tuple[float, ...] | None = None
    long_attention_factor: float = 1.0
    original_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GQASpec:
    """Grouped-query attention. `qk_norm`: per head (Qwen3) or over the whole projection (OLMoE).

    `output_gate`: q_proj is twice as wide and the second half of each head gates the output (Qwen3-Next).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec
    window: int | None = None
    qk_norm: Literal["none", "head", "full"] = "none"
    qkv_bias: bool = False
    out_bias: bool = False
    sinks: bool = False
    clip_qkv: float | None = None
    output_gate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MLASpec:
    """Multi-head latent attention (DeepSeek-V2): the cache holds kv_lora_rank + qk_rope_head_dim values a token.

    `latent_norm_eps` is the model code's own constant; the config's rms_norm_eps does not reach these norms.
    """

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    scale: float
    rope: RopeSpec
    bias: bool = False
    latent_norm_eps: float = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSpec:
    """Gated delta net (Qwen3-Next): a recurrent state instead of KV rows."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """How logits become (ids, weights). Every rule comes from the family.

    scoring: `softmax` over all experts, `sigmoid`, `softmax_selected` (softmax over the chosen logits; GPT-OSS,
    also exact for Mixtral-like renormalised softmax only up to rounding), `sparsemixer` (Phi-3.5-MoE).
    normalize: chosen weights are divided by their sum. scale: multiplies the weights afterwards.
    selection_bias: a per-expert bias added for selection only. num_groups > 1: only experts of the best
    `top_groups` groups may be chosen, a group scored by its best expert or the sum of its best two.
    """

    num_experts: int
    top_k: int
    scoring: Literal["softmax", "sigmoid", "softmax_selected", "sparsemixer"]
    normalize: bool
    scale: float = 1.0
    selection_bias: bool = False
    logit_bias: bool = False
    num_groups: int = 1
    top_groups: int = 1
    group_score: Literal["max", "top2_sum"] = "max"
    masked_value: float = float("-inf")
    normalize_eps: float = 0.0
    jitter_eps: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoESpec:
    """Routed experts of `ffn` units each, and a shared expert of `shared_ffn` units (0: none)."""

    router: RouterSpec
    ffn: int
    activation: Activation = "silu"
    expert_bias: bool = False
    shared_ffn: int = 0
    shared_gate: bool = False
    gptoss_limit: float = 7.0
    gptoss_alpha: float = 1.702


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSpec:
    ffn: int
    activation: Activation = "silu"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    attention: GQASpec | MLASpec | DeltaSpec
    mlp: MoESpec | DenseSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A pre-norm decoder: x += attention(norm(x)); x += mlp(norm(x)); logits = head(norm(x)).

    `mtp_layers` more layers may follow in the checkpoint, for predicting several tokens at once; they are unused.
    """

    family: str
    hidden: int
    vocab: int
    layers: tuple[LayerSpec, ...]
    norm: NormKind
    norm_eps: float
    tied_head: bool
    head_bias: bool = False
    max_positions: int
    checkpoint_dtype: str = "bfloat16"
    eos_token_ids: tuple[int, ...] = field(default=())
    mtp_layers: int = 0

    @property
    def moe_layers(self) -> tuple[int, ...]:
        return tuple(i for i, layer in enumerate(self.layers) if isinstance(layer.mlp, MoESpec))

    def moe(self, layer: int) -> MoESpec:
        mlp = self.layers[layer].mlp
        assert isinstance(mlp, MoESpec)
        return mlp
