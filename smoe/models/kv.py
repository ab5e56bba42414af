"""Device memory of the sequences in flight: KV rows in one arena a layer, recurrent states in slots."""

from dataclasses import dataclass

import torch

from smoe.models.spec import DecoderSpec, DeltaSpec, GQASpec, MLASpec


@dataclass(frozen=True, slots=True)
class LayerCache:
    """GQA: first = K, second = V, both [rows, kv_heads, head_dim].
    MLA: first = normalised latent [rows, kv_lora_rank], second = rotated shared key [rows, qk_rope_head_dim].
    Delta: first = convolution tail [states, kernel - 1, channels], second = state [states, heads, d_k, d_v], both fp32.
    """

    first: torch.Tensor
    second: torch.Tensor


class KVCache:
    """A sequence owns one contiguous range of rows, handed out by the scheduler; nothing is ever copied.

    Memory comes from `torch.empty`, so on CPU pages are touched only as sequences fill them.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        *,
        num_rows: int,
        num_states: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.num_rows, self.num_states = num_rows, num_states
        self.layers = [_layer_cache(layer.attention, num_rows, num_states, dtype, device) for layer in spec.layers]


def bytes_per_row(spec: DecoderSpec, dtype: torch.dtype) -> int:
    """KV bytes of one token over all layers."""
    values = 0
    for layer in spec.layers:
        attention = layer.attention
        if isinstance(attention, GQASpec):
            values += 2 * attention.num_kv_heads * attention.head_dim
        elif isinstance(attention, MLASpec):
            values += attention.kv_lora_rank + attention.qk_rope_head_dim
    return values * dtype.itemsize


def _layer_cache(
    attention: GQASpec | MLASpec | DeltaSpec, rows: int, states: int, dtype: torch.dtype, device: torch.device | str
) -> LayerCache:
    def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    if isinstance(attention, GQASpec):
        shape = (rows, attention.num_kv_heads, attention.head_dim)
        return LayerCache(empty(*shape), empty(*shape))
    if isinstance(attention, MLASpec):
        return LayerCache(empty(rows, attention.kv_lora_rank), empty(rows, attention.qk_rope_head_dim))
    channels = (
        2 * attention.num_key_heads * attention.key_head_dim + attention.num_value_heads * attention.value_head_dim
    )
    state = (states, attention.num_value_heads, attention.key_head_dim, attention.value_head_dim)
    tail = (states, attention.conv_kernel - 1, channels)
    return LayerCache(empty(*tail, dtype=torch.float32), empty(*state, dtype=torch.float32))
