"""Every routing rule against a slow one, row by row; and what bad numbers do."""

import math
from typing import Any

import pytest
import torch
from transformers.models.phimoe.modeling_phimoe import sparsemixer

from smoe.kernels import topk_softmax
from smoe.models.router import Router, choose, is_plain_softmax
from smoe.models.spec import RouterSpec

_SOFTMAX = RouterSpec(num_experts=24, top_k=5, scoring="softmax", normalize=False)


def _spec(**changes: Any) -> RouterSpec:
    fields = {name: getattr(_SOFTMAX, name) for name in RouterSpec.__slots__}
    return RouterSpec(**(fields | changes))


def _slow(spec: RouterSpec, logits: list[float], bias: list[float]) -> dict[int, float]:
    """Expert -> weight of one row, in Python numbers."""
    top = max(logits)
    total = sum(math.exp(x - top) for x in logits)
    if spec.scoring == "sigmoid":
        scores = [1 / (1 + math.exp(-x)) for x in logits]
    else:
        scores = [math.exp(x - top) / total for x in logits]
    selection = [s + b for s, b in zip(scores, bias, strict=True)]
    size = spec.num_experts // spec.num_groups
    groups = [range(g * size, (g + 1) * size) for g in range(spec.num_groups)]
    best_of = {"max": 1, "top2_sum": 2}[spec.group_score]

    def group_score(group: range) -> float:
        return sum(sorted((selection[e] for e in group), reverse=True)[:best_of])

    open_groups = sorted(groups, key=group_score, reverse=True)[: spec.top_groups]
    candidates = sorted((e for group in open_groups for e in group), key=lambda e: selection[e], reverse=True)
    chosen = candidates[: spec.top_k]
    weights = {e: scores[e] for e in chosen}
    if spec.normalize or spec.scoring == "softmax_selected":
        weights = {e: w / (sum(weights[c] for c in chosen) + spec.normalize_eps) for e, w in weights.items()}
    return {e: w * spec.scale for e, w in weights.items()}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="softmax"),
        pytest.param({"normalize": True}, id="softmax-normalized"),
        pytest.param({"scale": 2.5}, id="scaled-not-normalized"),
        pytest.param({"normalize": True, "scale": 2.5, "normalize_eps": 1e-20}, id="scaled-and-normalized"),
        pytest.param({"scoring": "softmax_selected"}, id="softmax-of-the-selected"),
        pytest.param({"scoring": "sigmoid"}, id="sigmoid"),
        pytest.param(
            {"scoring": "sigmoid", "selection_bias": True, "normalize": True, "scale": 2.5}, id="sigmoid-bias"
        ),
        pytest.param({"num_groups": 6, "top_groups": 2}, id="groups-by-their-best"),
        pytest.param(
            {"scoring": "sigmoid", "selection_bias": True, "num_groups": 4, "top_groups": 2, "group_score": "top2_sum"},
            id="groups-by-their-best-two",
        ),
        pytest.param({"num_groups": 8, "top_groups": 8}, id="all-groups-open"),
        pytest.param({"top_k": 1, "normalize": True}, id="k-1"),
        pytest.param({"top_k": 24}, id="k-all"),
        pytest.param({"num_experts": 300, "top_k": 8}, id="more-than-256-experts"),
    ],
)
def test_rules(changes: dict[str, Any]) -> None:
    spec = _spec(**changes)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(17, 13, generator=generator)
    params = {"r.weight": torch.randn(spec.num_experts, 13, generator=generator) * 0.5}
    bias = torch.randn(spec.num_experts, generator=generator) * 0.2 * spec.selection_bias
    if spec.selection_bias:
        params["r.selection_bias"] = bias
    ids, weights, logits = Router(spec, params, "r")(hidden)
    assert ids.dtype == torch.int32
    assert weights.dtype == logits.dtype == torch.float32
    assert torch.allclose(logits, hidden @ params["r.weight"].T, atol=1e-5)
    for row in range(len(hidden)):
        expected = _slow(spec, logits[row].double().tolist(), bias.double().tolist())
        actual = dict(zip(ids[row].tolist(), weights[row].tolist(), strict=True))
        assert actual.keys() == expected.keys()
        assert actual == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("spec", [_spec(), _spec(normalize=True), _spec(scoring="softmax_selected")])
def test_the_fused_rule_is_the_general_one(spec: RouterSpec) -> None:
    assert is_plain_softmax(spec)
    router = Router(spec, {"r.weight": torch.eye(24)}, "r")
    hidden = torch.randn(50, 24, generator=torch.Generator().manual_seed(2)) * 3
    ids, weights, logits = router(hidden)
    expected_ids, expected_weights = choose(spec, logits, None)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected_weights, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("jitter", [0.0, 0.01, 0.4])
def test_sparsemixer_is_that_of_transformers(jitter: float) -> None:
    logits = torch.randn(400, 6, generator=torch.Generator().manual_seed(3))
    weights, ids = sparsemixer(logits, jitter_eps=jitter, training=False)
    spec = _spec(num_experts=6, top_k=2, scoring="sparsemixer", jitter_eps=jitter)
    our_ids, our_weights = choose(spec, logits, None)
    assert torch.equal(our_ids.long(), ids)
    torch.testing.assert_close(our_weights, weights, rtol=0, atol=1e-7)


_RULES = [
    pytest.param(_spec(), id="softmax"),
    pytest.param(_spec(scale=2.0), id="general-softmax"),
    pytest.param(_spec(scoring="sigmoid", selection_bias=True, num_groups=4, top_groups=2), id="sigmoid-groups"),
    pytest.param(_spec(num_groups=4, top_groups=1, group_score="top2_sum", scale=2.0), id="softmax-groups"),
    pytest.param(_spec(scoring="sparsemixer", top_k=2), id="sparsemixer"),
]


@pytest.mark.parametrize("spec", _RULES)
@pytest.mark.parametrize(
    "bad",
    [[math.nan], [math.inf], [-math.inf], [math.inf, -math.inf], [math.nan] * 24, [-math.inf] * 24],
)
@pytest.mark.parametrize("fused", [False, True])
def test_bad_logits_spoil_their_row_alone(spec: RouterSpec, bad: list[float], fused: bool) -> None:
    def run(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if fused:
            return topk_softmax(logits, spec.top_k, spec.normalize)
        return choose(spec, logits, torch.zeros(24))

    logits = torch.randn(9, 24, generator=torch.Generator().manual_seed(4))
    clean_ids, clean_weights = run(logits)
    spoilt = logits.clone()
    spoilt[4, : len(bad)] = torch.tensor(bad)
    ids, weights = run(spoilt)
    assert weights[4].isnan().all()
    assert ids.min() >= 0
    assert ids.max() < 24
    assert len(set(ids[4].tolist())) == spec.top_k
    others = torch.arange(9) != 4
    assert torch.equal(ids[others], clean_ids[others])
    assert torch.equal(weights[others], clean_weights[others])


@pytest.mark.parametrize("spec", _RULES)
def test_a_row_does_not_notice_its_neighbours(spec: RouterSpec) -> None:
    generator = torch.Generator().manual_seed(5)
    params = {"r.weight": torch.randn(24, 31, generator=generator), "r.selection_bias": torch.zeros(24)}
    router = Router(spec, params, "r")
    hidden = torch.randn(19, 31, generator=generator)
    ids, weights, _ = router(hidden)
    for row in range(len(hidden)):
        one_ids, one_weights, _ = router(hidden[row : row + 1])
        assert torch.equal(one_ids[0], ids[row])
        assert torch.equal(one_weights[0], weights[row])
