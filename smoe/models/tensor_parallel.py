"""The part of a decoder that one rank of a tensor-parallel group holds.

Attention is cut by heads, the embedding and the head by vocabulary, each as evenly as it goes; norms, routers, shared
experts and dense MLPs are whole on every rank, which works on its own rows with them. A KV head is held by every rank
that has one of its query heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from smoe.core.errors import ConfigError
from smoe.models.checkpoint import NOTHING, Cut
from smoe.models.spec import DecoderSpec, DeltaSpec, GQASpec, LayerSpec, MLASpec

Attention = GQASpec | MLASpec | DeltaSpec
Range = tuple[int, int]
FIELD = "tensor_parallel_size"


def check_size(spec: DecoderSpec, size: int) -> None:
    """Raises ConfigError, with the legal sizes, for one that some layer's heads cannot be cut into."""
    limit = min(_num_heads(layer.attention) for layer in spec.layers)
    legal = [n for n in range(1, limit + 1) if all(_can_cut(layer.attention, n) for layer in spec.layers)]
    if size not in legal:
        raise ConfigError(FIELD, size, f"one of {', '.join(map(str, legal))}, by the heads of the model")


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
        """Token ids whose embedding and head this rank holds."""
        return self._share(self.spec.vocab)

    def cut(self, name: str) -> Cut | None:
        """This rank's part of a parameter; None: all of it."""
        if name in ("embed", "head.weight", "head.bias"):
            return Cut(0, (self.vocab(),))
        if ".attn." not in name:
            return None
        layer, part = name.removeprefix("layers.").split(".attn.")
        attention = self.spec.layers[int(layer)].attention
        if part == "out.bias":
            return None if self.rank == 0 else NOTHING
        if isinstance(attention, GQASpec):
            return self._gqa(attention, part)
        if isinstance(attention, MLASpec):
            return self._mla(attention, part)
        return self._delta(attention, part)

    def _local(self, attention: Attention) -> Attention:
        if isinstance(attention, GQASpec):
            return replace(attention, num_heads=self._count(attention.num_heads), num_kv_heads=len(self._kv(attention)))
        if isinstance(attention, MLASpec):
            return replace(attention, num_heads=self._count(attention.num_heads))
        keys = self._count(attention.num_key_heads)
        return replace(attention, num_key_heads=keys, num_value_heads=keys * _values_a_key(attention))

    def _share(self, count: int) -> Range:
        """Of `count` things in a row, those of this rank: an even share, the first ranks one more."""
        share, more = divmod(count, self.size)
        first = self.rank * share + min(self.rank, more)
        return first, first + share + (self.rank < more)

    def _count(self, count: int) -> int:
        first, stop = self._share(count)
        return stop - first

    def _kv(self, attention: GQASpec) -> list[int]:
        """KV heads of this rank's query heads, such that each serves as many of them: each once where that comes out,
        else one a query head."""
        group = attention.num_heads // attention.num_kv_heads
        wanted = [head // group for head in range(*self._share(attention.num_heads))]
        distinct = sorted(set(wanted))
        each = len(wanted) // len(distinct)
        return distinct if wanted == [kv for kv in distinct for _ in range(each)] else wanted

    def _gqa(self, attention: GQASpec, part: str) -> Cut | None:
        q, width = self._share(attention.num_heads), attention.head_dim
        kv = [(head, head + 1) for head in self._kv(attention)]
        if part in ("qkv.weight", "qkv.bias"):
            heads, kv_heads = attention.num_heads, attention.num_kv_heads
            of_q = 2 * width if attention.output_gate else width  # each head's query, and then its gate
            return Cut(0, _stacked([(heads, [q], of_q), (kv_heads, kv, width), (kv_heads, kv, width)]))
        if part == "out.weight":
            return Cut(1, (_scaled(q, width),))
        if part == "sinks":
            return Cut(0, (q,))
        if attention.qk_norm == "full" and part in ("q_norm.weight", "k_norm.weight"):
            return Cut(0, tuple(_scaled(own, width) for own in ([q] if part == "q_norm.weight" else kv)))
        return None

    def _mla(self, attention: MLASpec, part: str) -> Cut | None:
        heads = self._share(attention.num_heads)
        if part.partition(".")[0] == ("q" if attention.q_lora_rank is None else "q_b"):
            return Cut(0, (_scaled(heads, attention.qk_nope_head_dim + attention.qk_rope_head_dim),))
        if part == "kv_b.weight":
            return Cut(0, (_scaled(heads, attention.qk_nope_head_dim + attention.v_head_dim),))
        return Cut(1, (_scaled(heads, attention.v_head_dim),)) if part == "out.weight" else None

    def _delta(self, attention: DeltaSpec, part: str) -> Cut | None:
        keys, each = self._share(attention.num_key_heads), _values_a_key(attention)
        values = _scaled(keys, each)
        key = (attention.num_key_heads, [keys], attention.key_head_dim)
        value = (attention.num_value_heads, [values], attention.value_head_dim)
        if part == "in.weight":
            # Rows of a key head lie together: its query, its key, its values and their gates; then its scalars.
            of_key = 2 * attention.key_head_dim + 2 * each * attention.value_head_dim
            return Cut(0, _stacked([(attention.num_key_heads, [keys], rows) for rows in (of_key, 2 * each)]))
        if part == "conv.weight":
            return Cut(0, _stacked([key, key, value]))
        if part in ("a_log", "dt_bias"):
            return Cut(0, (values,))
        return Cut(1, (_scaled(values, attention.value_head_dim),)) if part == "out.weight" else None


def _scaled(heads: Range, width: int) -> Range:
    return heads[0] * width, heads[1] * width


def _stacked(blocks: Sequence[tuple[int, Sequence[Range], int]]) -> tuple[Range, ...]:
    """Row ranges of a stack of blocks: (heads in all, those of this rank, rows a head) of each."""
    ranges: list[Range] = []
    first = 0
    for count, heads, width in blocks:
        ranges += [(first + start, first + stop) for start, stop in (_scaled(own, width) for own in heads)]
        first += count * width
    return tuple(ranges)


def _values_a_key(attention: DeltaSpec) -> int:
    return attention.num_value_heads // attention.num_key_heads


def _num_heads(attention: Attention) -> int:
    return attention.num_key_heads if isinstance(attention, DeltaSpec) else attention.num_heads


def _can_cut(attention: Attention, size: int) -> bool:
    if not isinstance(attention, GQASpec) or attention.qk_norm != "full":
        return size <= _num_heads(attention)
    # A norm over all heads takes the mean over ranks, so each must have as many.
    kv = attention.num_kv_heads
    return attention.num_heads % size == 0 and (kv % size == 0 or size % kv == 0)
