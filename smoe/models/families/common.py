"""What the families share: checks of a config's fields, the decoder around their layers, the usual tensor names."""

from typing import Any

from smoe.core.errors import CheckpointError
from smoe.models.checkpoint import ExpertNames, Param, Source
from smoe.models.spec import DecoderSpec, DenseSpec, GQASpec, LayerSpec, MoESpec, NormKind, RouterSpec

HfConfig = Any
"""A transformers PretrainedConfig as AutoConfig reads it; which fields it has depends on the family."""


def reject(field: str, value: object, limit: str) -> CheckpointError:
    """The error for a field of config.json that has `value` but must satisfy `limit`."""
    return CheckpointError(f"config.json: {field}: {value!r} ({limit})")


def check_top_k(top_k: int, num_experts: int, *, experts_field: str) -> None:
    if num_experts < 1:
        raise reject(experts_field, num_experts, "at least 1")
    if not 1 <= top_k <= num_experts:
        raise reject("num_experts_per_tok", top_k, f"from 1 to {experts_field} = {num_experts}")


def softmax_router(config: HfConfig, *, experts_field: str, normalize: bool) -> RouterSpec:
    """Softmax over all experts, the best k kept; `normalize` is the family's rule, never a guess."""
    num_experts = getattr(config, experts_field)
    check_top_k(config.num_experts_per_tok, num_experts, experts_field=experts_field)
    return RouterSpec(num_experts=num_experts, top_k=config.num_experts_per_tok, scoring="softmax", normalize=normalize)


def check_silu(config: HfConfig) -> None:
    if config.hidden_act != "silu":
        raise reject("hidden_act", config.hidden_act, "silu")


def head_dim_of(config: HfConfig) -> int:
    """`head_dim`, or hidden / heads where it is absent or null; checks what attention divides by."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads < 1 or not 1 <= kv_heads <= heads or heads % kv_heads:
        raise reject("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads = {heads}")
    head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // heads
    if head_dim < 2 or head_dim % 2:
        raise reject("head_dim", head_dim, "even, at least 2: rotary positions turn pairs of values")
    return head_dim


def window_of(value: int | None) -> int | None:
    """`sliding_window` in tokens, itself included; null and 0 both say that there is none."""
    if value is not None and value < 0:
        raise reject("sliding_window", value, "null, 0 or the window in tokens")
    return value or None


def layer_windows(config: HfConfig) -> list[int | None]:
    """A window or None for each layer, by `layer_types`."""
    kinds = config.layer_types
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise reject("layer_types", kind, "full_attention or sliding_attention")
    window = window_of(config.sliding_window)
    return [window if kind == "sliding_attention" else None for kind in kinds]


def moe_layer_flags(config: HfConfig) -> list[bool]:
    """Qwen's rule: every `decoder_sparse_step`-th layer has experts, save those in `mlp_only_layers`."""
    step, dense = config.decoder_sparse_step, set(config.mlp_only_layers or ())
    if step < 1:
        raise reject("decoder_sparse_step", step, "at least 1")
    return [i not in dense and (i + 1) % step == 0 for i in range(config.num_hidden_layers)]


def decoder_spec(
    config: HfConfig, family: str, layers: list[LayerSpec], *, norm: NormKind = "rms", head_bias: bool = False
) -> DecoderSpec:
    if not layers:
        raise reject("num_hidden_layers", config.num_hidden_layers, "at least 1")
    if not any(isinstance(layer.mlp, MoESpec) for layer in layers):
        raise reject("num_hidden_layers", len(layers), "no layer has experts: at least one must")
    eos = config.eos_token_id
    dtype = getattr(config, "dtype", None)
    return DecoderSpec(
        family=family,
        hidden=config.hidden_size,
        vocab=config.vocab_size,
        layers=tuple(layers),
        norm=norm,
        norm_eps=config.rms_norm_eps,
        tied_head=bool(config.tie_word_embeddings),
        head_bias=head_bias,
        max_positions=config.max_position_embeddings,
        checkpoint_dtype="bfloat16" if dtype is None else str(dtype).removeprefix("torch."),
        eos_token_ids=() if eos is None else tuple(eos) if isinstance(eos, list | tuple) else (eos,),
    )


def decoder_params(spec: DecoderSpec) -> dict[str, Param]:
    """Embedding, norms, head and, for GQA layers without an output gate, the projections of attention."""
    params = {"embed": param("model.embed_tokens.weight", spec.vocab, spec.hidden), **_norm(spec, "norm", "model.norm")}
    if not spec.tied_head:
        params["head.weight"] = param("lm_head.weight", spec.vocab, spec.hidden)
    if spec.head_bias:
        params["head.bias"] = param("lm_head.bias", spec.vocab)
    for i, layer in enumerate(spec.layers):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        params |= _norm(spec, f"{ours}.attn_norm", f"{theirs}.input_layernorm")
        params |= _norm(spec, f"{ours}.mlp_norm", f"{theirs}.post_attention_layernorm")
        if isinstance(layer.attention, GQASpec) and not layer.attention.output_gate:
            params |= gqa_params(layer.attention, spec.hidden, f"{ours}.attn", f"{theirs}.self_attn")
        if isinstance(layer.mlp, DenseSpec):
            params |= gated_mlp_params(layer.mlp.ffn, spec.hidden, f"{ours}.mlp", f"{theirs}.mlp")
    return params


def gqa_params(attention: GQASpec, hidden: int, ours: str, theirs: str) -> dict[str, Param]:
    q, kv = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    rows = {"q_proj": q, "k_proj": kv, "v_proj": kv}
    params = {
        f"{ours}.qkv.weight": Param(tuple(Source(f"{theirs}.{n}.weight", (r, hidden)) for n, r in rows.items())),
        f"{ours}.out.weight": param(f"{theirs}.o_proj.weight", hidden, q),
    }
    if attention.qkv_bias:
        params[f"{ours}.qkv.bias"] = Param(tuple(Source(f"{theirs}.{n}.bias", (r,)) for n, r in rows.items()))
    if attention.out_bias:
        params[f"{ours}.out.bias"] = param(f"{theirs}.o_proj.bias", hidden)
    if attention.qk_norm != "none":
        sizes = (attention.head_dim,) * 2 if attention.qk_norm == "head" else (q, kv)
        params[f"{ours}.q_norm.weight"] = param(f"{theirs}.q_norm.weight", sizes[0])
        params[f"{ours}.k_norm.weight"] = param(f"{theirs}.k_norm.weight", sizes[1])
    if attention.sinks:
        params[f"{ours}.sinks"] = param(f"{theirs}.sinks", attention.num_heads)
    return params


def gated_mlp_params(ffn: int, hidden: int, ours: str, theirs: str) -> dict[str, Param]:
    return {
        f"{ours}.gate.weight": param(f"{theirs}.gate_proj.weight", ffn, hidden),
        f"{ours}.up.weight": param(f"{theirs}.up_proj.weight", ffn, hidden),
        f"{ours}.down.weight": param(f"{theirs}.down_proj.weight", hidden, ffn),
    }


def split_and_stacked_experts(theirs: str, *, gate: str, up: str, down: str, stacked: str | None = None) -> ExpertNames:
    """One tensor an expert under `theirs`, or the stacked ones of transformers 5 under `stacked` (default: as well)."""
    together = stacked or theirs
    return ExpertNames(
        split={part: f"{theirs}.{{e}}.{name}.weight" for part, name in (("gate", gate), ("up", up), ("down", down))},
        stacked={"gate_up": f"{together}.gate_up_proj", "down": f"{together}.down_proj"},
    )


def qwen_experts(theirs: str) -> ExpertNames:
    return split_and_stacked_experts(theirs, gate="gate_proj", up="up_proj", down="down_proj")


def ignored_tensors(spec: DecoderSpec) -> tuple[str, ...]:
    """A tied head that was saved all the same, and the frequencies that old files keep beside the weights."""
    frequencies = [f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(len(spec.layers))]
    return (*frequencies, *(("lm_head.weight",) if spec.tied_head else ()))


def param(name: str, *shape: int, aliases: tuple[str, ...] = ()) -> Param:
    return Param((Source(name, shape, aliases),))


def _norm(spec: DecoderSpec, ours: str, theirs: str) -> dict[str, Param]:
    params = {f"{ours}.weight": param(f"{theirs}.weight", spec.hidden)}
    if spec.norm == "layer":
        params[f"{ours}.bias"] = param(f"{theirs}.bias", spec.hidden)
    return params
