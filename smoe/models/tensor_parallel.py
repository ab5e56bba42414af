"""The part of a decoder that one rank of a tensor-parallel group holds.

Attention is cut by heads, the embedding and the head by vocabulary; norms, routers, shared experts and dense MLPs are
whole on every rank, which works on its own rows with them. Fewer KV heads than ranks: neighbours hold the same one.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from smoe.core.errors import ConfigError
from smoe.models.mla import unpack_kv_b
from smoe.models.spec import DecoderSpec, DeltaSpec, GQASpec, LayerSpec, MLASpec

Tensor = torch.Tensor
Attention = GQASpec | MLASpec | DeltaSpec
Range = tuple[int, int]
FIELD = "tensor_parallel_size"


def check_size(spec: DecoderSpec, size: int) -> None:
    """Raises ConfigError, with the legal sizes, for one that does not divide every layer's heads."""
    legal = [n for n in range(1, _most_heads(spec) + 1) if all(_divides(layer.attention, n) for layer in spec.layers)]
    if size not in legal:
        raise ConfigError(FIELD, size, f"one of {', '.join(map(str, legal))}: sizes that divide the heads of the model")


@dataclass(frozen=True, slots=True)
class TensorShare:
    """What place `rank` of `size` holds of `spec`, which `check_size` has accepted."""

    spec: DecoderSpec
    rank: int
    size: int

    def local_spec(self) -> DecoderSpec:
        """The same decoder with this rank's heads; `vocab` stays the whole one."""
        layers = [LayerSpec(attention=self._local(layer.attention), mlp=layer.mlp) for layer in self.spec.layers]
        return replace(self.spec, layers=tuple(layers))

    def vocab(self) -> Range:
        """Token ids whose embedding and head this rank holds: an even share, the first ranks one more."""
        share, more = divmod(self.spec.vocab, self.size)
        first = self.rank * share + min(self.rank, more)
        return first, first + share + (self.rank < more)

    def param(self, name: str, whole: Tensor) -> Tensor | None:
        """This rank's part of a parameter in memory of its own, or all of it; None: it is another rank's."""
        if name in ("embed", "head.weight", "head.bias"):
            return _take(whole, 0, [self.vocab()])
        if ".attn." not in name:
            return whole
        layer, part = name.removeprefix("layers.").split(".attn.")
        attention = self.spec.layers[int(layer)].attention
        if part == "out.bias":
            return whole if self.rank == 0 else None
        if isinstance(attention, GQASpec):
            return self._gqa(attention, part, whole)
        if isinstance(attention, MLASpec):
            return self._mla(attention, part, whole)
        return self._delta(attention, part, whole)

    def _local(self, attention: Attention) -> Attention:
        if isinstance(attention, GQASpec):
            kv_heads = max(1, attention.num_kv_heads // self.size)
            return replace(attention, num_heads=attention.num_heads // self.size, num_kv_heads=kv_heads)
        if isinstance(attention, MLASpec):
            return replace(attention, num_heads=attention.num_heads // self.size)
        keys, values = attention.num_key_heads // self.size, attention.num_value_heads // self.size
        return replace(attention, num_key_heads=keys, num_value_heads=values)

    def _heads(self, count: int) -> Range:
        """Of `count` heads, those of this rank; of fewer than ranks, the one it shares."""
        share = max(1, count // self.size)
        first = self.rank * count // self.size
        return first, first + share

    def _gqa(self, attention: GQASpec, part: str, whole: Tensor) -> Tensor:
        q, kv = self._heads(attention.num_heads), self._heads(attention.num_kv_heads)
        width, sizes = attention.head_dim, [attention.num_heads, *[attention.num_kv_heads] * 2]
        if part in ("qkv.weight", "qkv.bias"):
            gate = [attention.num_heads] if attention.output_gate else []
            return _take(whole, 0, _stacked([*sizes, *gate], [q, kv, kv, *[q] * len(gate)], [width] * 4))
        if part == "out.weight":
            return _take(whole, 1, [_scaled(q, width)])
        if part == "sinks":
            return _take(whole, 0, [q])
        if attention.qk_norm == "full" and part in ("q_norm.weight", "k_norm.weight"):
            return _take(whole, 0, [_scaled(q if part == "q_norm.weight" else kv, width)])
        return whole

    def _mla(self, attention: MLASpec, part: str, whole: Tensor) -> Tensor:
        heads = self._heads(attention.num_heads)
        module, _, kind = part.partition(".")
        if module == ("q" if attention.q_lora_rank is None else "q_b"):
            return _take(whole, 0, [_scaled(heads, attention.qk_nope_head_dim + attention.qk_rope_head_dim)])
        if part == "kv_b.weight":
            parts = [half[slice(*heads)] for half in unpack_kv_b(attention, whole)]
            return torch.cat([half.reshape(-1) for half in parts])
        if (module, kind) == ("out", "weight"):
            return _take(whole, 1, [_scaled(heads, attention.v_head_dim)])
        return whole

    def _delta(self, attention: DeltaSpec, part: str, whole: Tensor) -> Tensor:
        keys, values = self._heads(attention.num_key_heads), self._heads(attention.num_value_heads)
        counts = [attention.num_key_heads] * 2 + [attention.num_value_heads] * 4
        widths = [attention.key_head_dim] * 2 + [attention.value_head_dim] * 2 + [1, 1]
        if part == "in.weight":
            return _take(whole, 0, _stacked(counts, [keys, keys, *[values] * 4], widths))
        if part == "conv.weight":
            return _take(whole, 0, _stacked(counts[:3], [keys, keys, values], widths[:3]))
        if part in ("a_log", "dt_bias"):
            return _take(whole, 0, [values])
        if part == "out.weight":
            return _take(whole, 1, [_scaled(values, attention.value_head_dim)])
        return whole


def _take(whole: Tensor, dim: int, ranges: Sequence[Range]) -> Tensor:
    parts = [whole.narrow(dim, start, stop - start) for start, stop in ranges]
    return torch.cat(parts, dim) if len(parts) > 1 else parts[0].clone(memory_format=torch.contiguous_format)


def _scaled(heads: Range, width: int) -> Range:
    return heads[0] * width, heads[1] * width


def _stacked(counts: Sequence[int], heads: Sequence[Range], widths: Sequence[int]) -> list[Range]:
    """Row ranges of a stack of blocks, each `counts[i]` heads of `widths[i]` rows."""
    sizes = [count * width for count, width in zip(counts, widths, strict=False)]
    firsts = [0, *itertools.accumulate(sizes)]
    scaled = [_scaled(own, width) for own, width in zip(heads, widths, strict=False)]
    return [(first + start, first + stop) for first, (start, stop) in zip(firsts, scaled, strict=False)]


def _most_heads(spec: DecoderSpec) -> int:
    return max(
        layer.attention.num_key_heads if isinstance(layer.attention, DeltaSpec) else layer.attention.num_heads
        for layer in spec.layers
    )


def _divides(attention: Attention, size: int) -> bool:
    if isinstance(attention, GQASpec):
        kv = attention.num_kv_heads
        return attention.num_heads % size == 0 and (kv % size == 0 or size % kv == 0)
    if isinstance(attention, MLASpec):
        return attention.num_heads % size == 0
    return attention.num_key_heads % size == 0
