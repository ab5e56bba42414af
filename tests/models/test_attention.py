"""Grouped-query attention with each of its options, against a plain one without cache."""

from typing import Any

import pytest
import torch

from smoe.kernels import LayerNorm, RMSNorm
from smoe.models.attention import GQAAttention
from smoe.models.batch import Batch, StepContext
from smoe.models.kv import KVCache
from smoe.models.rope import RopeTables
from smoe.models.spec import DecoderSpec, DenseSpec, GQASpec, LayerSpec, RopeSpec

HIDDEN, HEADS, KV_HEADS, WIDTH, ROTARY, ROWS = 28, 6, 2, 10, 8, 13


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.4


def _plain(spec: GQASpec, params: dict[str, torch.Tensor], h: torch.Tensor) -> torch.Tensor:
    """Of one whole sequence, [T, D] normalised input to [T, D] output before the residual."""
    q_size, kv_size = HEADS * WIDTH, KV_HEADS * WIDTH
    rows = h @ params["attn.qkv.weight"].T + params.get("attn.qkv.bias", 0.0)
    q, k, v = rows[:, :q_size], rows[:, q_size : q_size + kv_size], rows[:, q_size + kv_size : q_size + 2 * kv_size]
    gate = rows[:, q_size + 2 * kv_size :]
    if spec.qk_norm == "full":
        q, k = _rms(q, params["attn.q_norm.weight"]), _rms(k, params["attn.k_norm.weight"])
    if spec.clip_qkv is not None:
        q, k, v = (x.clamp(-spec.clip_qkv, spec.clip_qkv) for x in (q, k, v))
    q, k, v = (x.reshape(ROWS, -1, WIDTH) for x in (q, k, v))
    if spec.qk_norm == "head":
        q, k = _rms(q, params["attn.q_norm.weight"]), _rms(k, params["attn.k_norm.weight"])
    angles = torch.outer(torch.arange(ROWS).float(), torch.tensor(spec.rope.inv_freq))[:, None]
    q, k = _turn(q, angles), _turn(k, angles)
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * spec.scale
    i, j = torch.arange(ROWS)[:, None], torch.arange(ROWS)
    hidden = (j > i) | (j <= i - (spec.window or ROWS))
    scores = scores.masked_fill(hidden, -torch.inf)
    if spec.sinks:
        scores = torch.cat([scores, params["attn.sinks"][:, None, None].expand(-1, ROWS, 1)], dim=2)
    out = torch.einsum("hij,jhd->ihd", scores.softmax(2)[:, :, :ROWS], v).reshape(ROWS, -1)
    if spec.output_gate:
        out = out * gate.sigmoid()
    return out @ params["attn.out.weight"].T + params.get("attn.out.bias", 0.0)


def _rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def _turn(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    a, b, rest = torch.split(x, [ROTARY // 2, ROTARY // 2, WIDTH - ROTARY], dim=2)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin(), rest], dim=2)


@pytest.mark.parametrize("norm_kind", ["rms", "layer"])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"qkv_bias": True, "out_bias": True}, id="biases"),
        pytest.param({"window": 4}, id="window"),
        pytest.param({"sinks": True}, id="sinks"),
        pytest.param({"sinks": True, "window": 3}, id="sinks-and-window"),
        pytest.param({"qk_norm": "head"}, id="norm-a-head"),
        pytest.param({"qk_norm": "full"}, id="norm-over-all"),
        pytest.param({"clip_qkv": 0.5}, id="clipped"),
        pytest.param({"qk_norm": "full", "clip_qkv": 0.5}, id="normed-then-clipped"),
        pytest.param({"output_gate": True, "qk_norm": "head"}, id="output-gate"),
    ],
)
def test_options(options: dict[str, Any], norm_kind: str) -> None:
    rope = RopeSpec(rotary_dim=ROTARY, inv_freq=(1.0, 0.5, 0.1, 0.02))
    fields = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": WIDTH, "scale": 0.3, "rope": rope}
    attention = GQASpec(**(fields | options))
    spec = DecoderSpec(
        family="test",
        hidden=HIDDEN,
        vocab=5,
        layers=(LayerSpec(attention=attention, mlp=DenseSpec(ffn=4)),),
        norm="rms",
        norm_eps=1e-6,
        tied_head=True,
        max_positions=64,
    )
    rows = (HEADS + 2 * KV_HEADS + HEADS * attention.output_gate) * WIDTH
    params = {"attn.qkv.weight": _random(0, rows, HIDDEN), "attn.out.weight": _random(1, HIDDEN, HEADS * WIDTH)}
    if attention.qkv_bias:
        params |= {"attn.qkv.bias": _random(2, rows), "attn.out.bias": _random(3, HIDDEN)}
    if attention.qk_norm != "none":
        sizes = (WIDTH, WIDTH) if attention.qk_norm == "head" else (HEADS * WIDTH, KV_HEADS * WIDTH)
        params |= {"attn.q_norm.weight": 1 + _random(4, sizes[0]), "attn.k_norm.weight": 1 + _random(5, sizes[1])}
    if attention.sinks:
        params["attn.sinks"] = _random(6, HEADS) * 3
    weight = 1 + _random(7, HIDDEN)
    norm = RMSNorm(weight, 1e-6) if norm_kind == "rms" else LayerNorm(weight, _random(8, HIDDEN), 1e-6)
    layer = GQAAttention(attention, params, "attn", norm, RopeTables(spec), spec)
    kv = KVCache(spec, num_rows=ROWS + 5, num_states=1, dtype=torch.float32)
    for cache in (kv.layers[0].first, kv.layers[0].second):
        cache.fill_(torch.nan)
    x, out, past = _random(9, ROWS, HIDDEN), [], 0
    for count in (6, 1, 4, 1, 1):
        context = StepContext(Batch.build([([0] * count, 5, past, 0)]))
        out.append(layer(x[past : past + count], context, kv.layers[0]))
        past += count
    torch.testing.assert_close(torch.cat(out), x + _plain(attention, params, norm(x)), rtol=1e-5, atol=1e-5)
