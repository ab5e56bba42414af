"""The MoE block apart from any family, and what non-finite router logits do to a batch."""

import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional

from smoe.kernels import ExpertTensors, RMSNorm
from smoe.models.bank import ResidentBank
from smoe.models.batch import Batch, StepContext
from smoe.models.decoder import Decoder
from smoe.models.kv import KVCache
from smoe.models.mlp import DenseMLP, MoEBlock
from smoe.models.spec import DecoderSpec, DenseSpec, GQASpec, LayerSpec, MoESpec, RopeSpec, RouterSpec

HIDDEN, FFN, SHARED, EXPERTS, TOP_K = 24, 10, 14, 5, 2


def _spec(num_layers: int = 1, **moe_options: Any) -> DecoderSpec:
    router = RouterSpec(num_experts=EXPERTS, top_k=TOP_K, scoring="softmax", normalize=True)
    rope = RopeSpec(rotary_dim=4, inv_freq=(1.0, 0.1))
    attention = GQASpec(num_heads=4, num_kv_heads=2, head_dim=6, scale=0.4, rope=rope)
    layer = LayerSpec(attention=attention, mlp=MoESpec(router=router, ffn=FFN, **moe_options))
    return DecoderSpec(
        family="test",
        hidden=HIDDEN,
        vocab=11,
        layers=(layer,) * num_layers,
        norm="rms",
        norm_eps=1e-6,
        tied_head=True,
        max_positions=64,
    )


def _random(*shape: int) -> torch.Tensor:
    seed = next(_SEEDS)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / HIDDEN**0.5


_SEEDS = itertools.count()


def _bank(spec: DecoderSpec) -> tuple[ResidentBank, dict[tuple[int, int], ExpertTensors]]:
    weights = {
        (i, e): ExpertTensors(_random(FFN, HIDDEN), _random(FFN, HIDDEN), _random(HIDDEN, FFN))
        for i in spec.moe_layers
        for e in range(EXPERTS)
    }
    return ResidentBank(spec, lambda i, e: weights[i, e]), weights


def _shared_params(prefix: str) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}.gate.weight": _random(SHARED, HIDDEN),
        f"{prefix}.up.weight": _random(SHARED, HIDDEN),
        f"{prefix}.down.weight": _random(HIDDEN, SHARED),
    }


def _swiglu(h: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return (functional.silu(h @ gate.T) * (h @ up.T)) @ down.T


def _context(num_rows: int) -> StepContext:
    return StepContext(Batch.build([([0] * num_rows, 0, 0, 0)]))


def test_dense_mlp_adds_to_the_residual() -> None:
    params = _shared_params("mlp")
    x = _random(7, HIDDEN)
    norm = RMSNorm(_random(HIDDEN) + 1, 1e-6)
    expected = x + _swiglu(norm(x), *params.values())
    actual = DenseMLP(DenseSpec(ffn=SHARED), params, "mlp", norm)(x, _context(7))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shared_gate", [False, True])
@pytest.mark.parametrize("shared_ffn", [0, SHARED])
def test_moe_block_is_the_sum_of_its_parts(shared_ffn: int, shared_gate: bool) -> None:
    spec = _spec(shared_ffn=shared_ffn, shared_gate=shared_gate and shared_ffn > 0)
    bank, experts = _bank(spec)
    params = {"moe.router.weight": _random(EXPERTS, HIDDEN) * 4, **_shared_params("moe.shared")}
    params["moe.shared_gate.weight"] = _random(1, HIDDEN) * 4
    norm = RMSNorm(_random(HIDDEN) + 1, 1e-6)
    block = MoEBlock(spec.moe(0), 0, params, "moe", norm, bank)
    x = _random(9, HIDDEN)
    seen: list[Any] = []
    context = _context(9)
    context.batch = Batch.build([([0] * 9, 0, 0, 0)], route_sink=lambda *route: seen.append(route))
    actual = block(x, context)

    h = norm(x)
    weights, ids = (h @ params["moe.router.weight"].T).softmax(1).topk(TOP_K, dim=1)
    weights = weights / weights.sum(1, keepdim=True)
    expected = x.clone()
    for row in range(9):
        for expert, weight in zip(ids[row].tolist(), weights[row], strict=True):
            tensors = experts[0, expert]
            expected[row] += weight * _swiglu(h[row], tensors.gate, tensors.up, tensors.down)
    if shared_ffn:
        shared = _swiglu(h, *(params[f"moe.shared.{part}.weight"] for part in ("gate", "up", "down")))
        expected += shared * (h @ params["moe.shared_gate.weight"].T).sigmoid() if shared_gate else shared
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    ((layer, seen_ids, seen_weights, logits),) = seen
    assert layer == 0
    assert torch.equal(seen_ids.long(), ids)
    assert seen_weights.shape == (9, TOP_K)
    assert logits.shape == (9, EXPERTS)


def test_a_gated_row_does_not_notice_its_neighbours() -> None:
    spec = _spec(shared_ffn=SHARED, shared_gate=True)
    params = {"moe.router.weight": _random(EXPERTS, HIDDEN), **_shared_params("moe.shared")}
    params["moe.shared_gate.weight"] = _random(1, HIDDEN) * 8
    block = MoEBlock(spec.moe(0), 0, params, "moe", RMSNorm(torch.ones(HIDDEN), 1e-6), _bank(spec)[0])
    x = _random(37, HIDDEN)
    together = block(x, _context(37))
    for row in range(37):
        assert torch.equal(block(x[row : row + 1], _context(1))[0], together[row])


def test_overflowing_router_logits_end_only_their_sequence() -> None:
    """Token 7 alone has a value in column 0, and the router of layer 0 multiplies that beyond fp32."""
    spec = _spec(num_layers=2)
    params = {"embed": _random(11, HIDDEN), "norm.weight": torch.ones(HIDDEN)}
    params["embed"][:, 0] = 0.0
    params["embed"][7, 0] = 5.0
    for i in range(2):
        prefix = f"layers.{i}"
        params |= {f"{prefix}.{name}_norm.weight": torch.ones(HIDDEN) for name in ("attn", "mlp")}
        params[f"{prefix}.attn.qkv.weight"] = _random(48, HIDDEN)
        params[f"{prefix}.attn.out.weight"] = _random(HIDDEN, 24)
        params[f"{prefix}.moe.router.weight"] = _random(EXPERTS, HIDDEN)
    params["layers.0.attn.out.weight"][0] = 0.0
    params["layers.0.moe.router.weight"][2, 0] = 3e38
    decoder = Decoder(spec, params, _bank(spec)[0], dtype=torch.float32)

    def logits(*spans: tuple[list[int], int]) -> torch.Tensor:
        kv = KVCache(spec, num_rows=16, num_states=1, dtype=torch.float32)
        rows = sum(len(tokens) for tokens, _ in spans)
        batch = Batch.build([(t, start, 0, 0) for t, start in spans], logit_rows=list(range(rows)))
        return decoder.forward(batch, kv)

    spoilt, clean = ([1, 2, 7, 3], 0), ([4, 5, 6], 4)
    together = logits(spoilt, clean)
    assert together[2].isnan().all(), "the row itself"
    assert together[3].isnan().all(), "what attends to it"
    assert torch.equal(together[4:], logits(clean)), "the other sequence"
    assert together[4:].isfinite().all()
