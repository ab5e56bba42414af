"""How latent attention takes kv_b apart, and what it leaves in the cache."""

import torch

from smoe.kernels import RMSNorm
from smoe.models.batch import Batch, StepContext
from smoe.models.families.deepseek_v2 import mla_params
from smoe.models.kv import KVCache, bytes_per_row
from smoe.models.mla import MLAAttention, pack_kv_b, unpack_kv_b
from smoe.models.rope import RopeTables
from smoe.models.spec import DecoderSpec, DenseSpec, LayerSpec, MLASpec, RopeSpec

HIDDEN = 24


def mla_spec(*, interleaved: bool = False, q_lora_rank: int | None = None) -> MLASpec:
    rope = RopeSpec(rotary_dim=6, inv_freq=(1.0, 0.3, 0.1), interleaved=interleaved)
    return MLASpec(
        num_heads=3,
        q_lora_rank=q_lora_rank,
        kv_lora_rank=10,
        qk_nope_head_dim=4,
        qk_rope_head_dim=6,
        v_head_dim=5,
        scale=0.3,
        rope=rope,
    )


def decoder_of(attention: MLASpec) -> DecoderSpec:
    return DecoderSpec(
        family="deepseek_v2",
        hidden=HIDDEN,
        vocab=7,
        layers=(LayerSpec(attention=attention, mlp=DenseSpec(ffn=8)),),
        norm="rms",
        norm_eps=1e-6,
        tied_head=True,
        max_positions=64,
    )


def attention_of(attention: MLASpec, seed: int = 3) -> MLAAttention:
    """Built from random tensors of the checkpoint's shapes, the same for every spelling of the same model."""
    generator = torch.Generator().manual_seed(seed)
    params = {
        name: param.build([torch.randn(source.shape, generator=generator) / 4 for source in param.sources])
        for name, param in mla_params(attention, HIDDEN, "a", "t").items()
    }
    spec = decoder_of(attention)
    return MLAAttention(attention, params, "a", RMSNorm(torch.ones(HIDDEN), 1e-6), RopeTables(spec), spec)


def run(layer: MLAAttention, spec: DecoderSpec, x: torch.Tensor) -> tuple[torch.Tensor, KVCache]:
    kv = KVCache(spec, num_rows=len(x) + 2, num_states=0, dtype=x.dtype)
    batch = Batch.build([([0] * len(x), 2, 0, 0)])
    return layer(x, StepContext(batch), kv.layers[0]), kv


def test_kv_b_comes_apart_by_head() -> None:
    spec = mla_spec()
    kv_b = torch.randn(3 * (4 + 5), 10)
    key_up, value_up = unpack_kv_b(spec, pack_kv_b(spec, [kv_b]))
    per_head = kv_b.view(3, 9, 10)
    assert torch.equal(key_up, per_head[:, :4].mT)
    assert torch.equal(value_up, per_head[:, 4:])


def test_interleaved_pairs_are_turned_as_pairs() -> None:
    """Scores with interleaved rotary rows equal those of the same rows sorted into halves beforehand."""
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(3 * (4 + 6), HIDDEN, generator=generator)
    pairs, halves = (mla_params(mla_spec(interleaved=way), HIDDEN, "a", "t")["a.q.weight"] for way in (True, False))
    order = [0, 1, 2, 3, *(4 + i for i in (0, 2, 4, 1, 3, 5))]
    sorted_rows = rows.view(3, 10, HIDDEN)[:, order].reshape(-1, HIDDEN)
    assert torch.equal(pairs.build([rows]), sorted_rows)
    assert torch.equal(halves.build([rows]), rows)


def test_the_cache_is_the_latent_and_the_shared_key() -> None:
    spec = mla_spec(q_lora_rank=7)
    decoder = decoder_of(spec)
    assert bytes_per_row(decoder, torch.float32) == 4 * (10 + 6)
    _, kv = run(attention_of(spec), decoder, torch.randn(5, HIDDEN))
    (cache,) = kv.layers
    assert (cache.first.shape, cache.second.shape) == ((7, 10), (7, 6))


def test_the_residual_is_added_and_x_is_left_alone() -> None:
    spec = mla_spec()
    layer, x = attention_of(spec), torch.randn(5, HIDDEN)
    before = x.clone()
    y, _ = run(layer, decoder_of(spec), x)
    assert torch.equal(x, before)
    shifted, _ = run(layer, decoder_of(spec), 2 * x)  # the norm takes out the factor, so only the residual doubles
    assert torch.allclose(shifted - y, x, atol=1e-5)
