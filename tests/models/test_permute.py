"""Experts renumbered: every family computes the same under the new ids."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from smoe.core.errors import PlacementError
from smoe.core.placement_build import contiguous, from_expert_device, with_replicas
from smoe.models.bank import ResidentBank
from smoe.models.decoder import Decoder
from smoe.models.loading import open_checkpoint
from smoe.models.permute import (
    Order,
    check_model,
    check_order,
    expert_groups,
    new_ids,
    orders_of,
    permute_layer,
    permute_params,
    permute_reader,
)
from smoe.models.router import Router
from smoe.models.spec import DecoderSpec, RouterSpec
from tests.models.parity import Routes, SmoeRun, write_checkpoint

# Of the rounding that another order of sums makes; a tenth of the difference from transformers that is allowed.
LOGIT_TOLERANCE, WEIGHT_TOLERANCE = 1e-5, 1e-6

_SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 89,
    "max_position_embeddings": 256,
    "num_experts_per_tok": 3,
}
_MOE = _SIZES | {"intermediate_size": 56, "moe_intermediate_size": 20, "num_experts": 10}
_MLA = _SIZES | {
    "num_key_value_heads": 6,
    "kv_lora_rank": 20,
    "q_lora_rank": 28,
    "qk_nope_head_dim": 14,
    "qk_rope_head_dim": 10,
    "v_head_dim": 18,
    "intermediate_size": 56,
    "moe_intermediate_size": 22,
    "n_routed_experts": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
_DELTA = _MOE | {
    "head_dim": 16,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 14,
    "linear_conv_kernel_dim": 4,
    "shared_expert_intermediate_size": 26,
    "full_attention_interval": 3,
}
_LOCAL = _SIZES | {"intermediate_size": 20, "num_local_experts": 7}
_V3 = {"routed_scaling_factor": 2.5, "num_mtp_layers": 0}
# Fewer groups than experts chosen: where a group counts as its best expert, as many groups would limit nothing.
_LIMITED = {"n_group": 8, "topk_group": 2}
FAMILIES = {
    "mixtral": ("mixtral", _LOCAL | {"num_experts_per_tok": 2}),
    "phi-3.5": ("phimoe", _LOCAL | {"num_experts_per_tok": 2}),
    "qwen2": ("qwen2_moe", _MOE | {"shared_expert_intermediate_size": 28}),
    "qwen3": ("qwen3_moe", _MOE | {"head_dim": 10, "norm_topk_prob": True}),
    "qwen3-k-all": ("qwen3_moe", _MOE | {"head_dim": 10, "num_experts_per_tok": 10}),
    "qwen3-next": ("qwen3_next", _DELTA),
    "olmoe": ("olmoe", _SIZES | {"intermediate_size": 20, "num_experts": 9}),
    "gpt-oss": ("gpt_oss", _LOCAL | {"head_dim": 10, "sliding_window": 16}),
    "deepseek-v2": ("deepseek_v2", _MLA | {"routed_scaling_factor": 1.7}),
    "deepseek-v2-groups": ("deepseek_v2", _MLA | _LIMITED | {"topk_method": "group_limited_greedy"}),
    "deepseek-v3": ("deepseek_v3", _MLA | _V3 | {"n_group": 1, "topk_group": 1}),
    "deepseek-v3-groups": ("deepseek_v3", _MLA | _V3 | _LIMITED),
}
GROUPED = ("deepseek-v2-groups", "deepseek-v3-groups")


class Permuted(SmoeRun):
    """The model in the folder under new ids; `spec` may tell the checks something else than the truth."""

    def __init__(self, folder: Path, orders: dict[int, Order], spec: DecoderSpec | None = None) -> None:
        checkpoint = open_checkpoint(folder)
        self.spec, self.dtype = checkpoint.spec, torch.float32

        def read(layer: int, expert: int) -> Any:
            return checkpoint.read_expert(layer, expert, dtype=torch.float32)

        self.params = permute_params(spec or self.spec, checkpoint.params(dtype=torch.float32), orders)
        bank = ResidentBank(self.spec, permute_reader(read, orders))
        self.decoder = Decoder(self.spec, self.params, bank, dtype=torch.float32)


def make_folder(name: str, tmp_path: Path) -> Path:
    model_type, sizes = FAMILIES[name]
    return write_checkpoint(AutoConfig.for_model(model_type, **sizes), tmp_path)


def random_order(spec: RouterSpec, rng: np.random.Generator) -> Order:
    """Groups in any order, and experts in any order within them; without groups any permutation at all."""
    blocks = np.arange(spec.num_experts).reshape(spec.num_groups, -1)
    return rng.permuted(blocks[rng.permutation(spec.num_groups)], axis=1).ravel()


def renamed(routes: Routes, orders: dict[int, Order]) -> Routes:
    """The routes under new ids, sorted by them."""
    out = {}
    for layer, (ids, weights) in routes.items():
        ids = torch.from_numpy(new_ids(orders[layer]))[ids]
        order = ids.argsort(dim=1)
        out[layer] = (ids.gather(1, order), weights.gather(1, order))
    return out


TOKENS = torch.randint(89, (80,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_renumbered_model_computes_the_same(name: str, tmp_path: Path) -> None:
    """Logits up to the rounding of sums in another order; chosen experts exactly, under their new ids."""
    folder = make_folder(name, tmp_path)
    plain = SmoeRun(folder, torch.float32)
    expected, routes = plain.run(TOKENS, 64)
    rng = np.random.default_rng(1)
    orders = {layer: random_order(plain.spec.moe(layer).router, rng) for layer in plain.spec.moe_layers}
    assert all((order != np.arange(len(order))).any() for order in orders.values())
    actual, chosen = Permuted(folder, orders).run(TOKENS, 64)
    assert (actual - expected).abs().max() < LOGIT_TOLERANCE
    named = renamed(routes, orders)
    for layer in orders:
        assert torch.equal(chosen[layer][0], named[layer][0])
        scale = plain.spec.moe(layer).router.scale
        assert (chosen[layer][1] - named[layer][1]).abs().max() < WEIGHT_TOLERANCE * scale


@pytest.mark.parametrize("name", FAMILIES)
def test_router_logits_are_the_same_bits(name: str, tmp_path: Path) -> None:
    """So that a permutation of logits is all that is left to prove, and no choice can flip."""
    run = SmoeRun(make_folder(name, tmp_path), torch.float32)
    rng = np.random.default_rng(2)
    orders = {layer: random_order(run.spec.moe(layer).router, rng) for layer in run.spec.moe_layers}
    permuted = permute_params(run.spec, run.params, orders)
    hidden = torch.randn(50, run.spec.hidden, generator=torch.Generator().manual_seed(3))
    for layer, order in orders.items():
        spec = run.spec.moe(layer).router
        old, new = (Router(spec, params, f"layers.{layer}.moe.router") for params in (run.params, permuted))
        assert torch.equal(new.logits(hidden), old.logits(hidden)[:, torch.from_numpy(order)])


@pytest.mark.parametrize("name", GROUPED)
def test_a_split_group_would_change_what_is_computed(name: str, tmp_path: Path) -> None:
    """Told that there are no groups, the check lets an order pass that cuts through them; the router knows better."""
    folder = make_folder(name, tmp_path)
    plain = SmoeRun(folder, torch.float32)
    expected, routes = plain.run(TOKENS, 64)
    no_groups = replace(
        plain.spec,
        layers=tuple(
            replace(layer, mlp=replace(layer.mlp, router=replace(layer.mlp.router, num_groups=1)))
            if hasattr(layer.mlp, "router")
            else layer
            for layer in plain.spec.layers
        ),
    )
    rng = np.random.default_rng(1)
    orders: dict[int, Order] = {layer: rng.permutation(24) for layer in plain.spec.moe_layers}
    actual, chosen = Permuted(folder, orders, no_groups).run(TOKENS, 64)
    named = renamed(routes, orders)
    first = plain.spec.moe_layers[0]
    changed = (chosen[first][0] != named[first][0]).any(dim=1).float().mean()
    assert changed > 0.2, "rows whose experts are others"
    assert (actual - expected).abs().max() > 1e-2
    with pytest.raises(PlacementError, match="is split over places"):
        permute_params(plain.spec, plain.params, orders)


LIMITED = RouterSpec(num_experts=8, top_k=2, scoring="sigmoid", normalize=True, num_groups=4, top_groups=2)
FREE = replace(LIMITED, num_groups=1)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 2, 1, 3, 4, 5, 6, 7], "layer 3: group 0 (experts 0 to 1) is split over places [0, 1] of 2 experts"),
        ([1, 0, 2, 3, 4, 6, 5, 7], "layer 3: group 2 (experts 4 to 5) is split over places [2, 3] of 2 experts"),
        ([1, 2, 3, 4, 5, 6, 7, 0], "group 0 (experts 0 to 1) is split over places [0, 3]"),
    ],
)
def test_a_split_group_is_named(order: list[int], message: str) -> None:
    check_order(FREE, np.array(order))
    check_order(LIMITED, np.array([6, 7, 1, 0, 5, 4, 2, 3]), "layer 3")
    with pytest.raises(PlacementError, match=re.escape(message)):
        check_order(LIMITED, np.array(order), "layer 3")


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 1, 2, 3, 4, 5, 6], "7 experts, of which 7 is named 0 times (each of 8 once)"),
        ([0, 1, 2, 3, 4, 5, 6, 6], "8 experts, of which 6 is named 2 times"),
        ([0, 1, 2, 3, 4, 5, 6, 8], "8 experts, of which 7 is named 0 times"),
        ([0, 1, 2, 3, 4, 5, 6, -1], "8 experts, of which 7 is named 0 times"),
        ([0, 1, 2, 3, 4, 5, 6, 7, 0], "9 experts, of which 0 is named 2 times"),
        ([0, 1, 2, 3, 4, 5, 6, 7, 9], "9 experts"),
    ],
)
def test_what_is_no_order(order: list[int], message: str) -> None:
    with pytest.raises(PlacementError, match=re.escape(message)):
        check_order(FREE, np.array(order))


def test_one_layer_is_permuted_and_the_arguments_are_not() -> None:
    router = {"weight": torch.arange(24.0).view(8, 3), "bias": torch.arange(8.0), "selection_bias": -torch.arange(8.0)}
    order = np.array([6, 7, 1, 0, 5, 4, 2, 3])
    kept = {name: tensor.clone() for name, tensor in router.items()}
    permuted, experts = permute_layer(LIMITED, router, list("abcdefgh"), order)
    assert experts == list("ghbafecd")
    assert permuted["bias"].tolist() == order.tolist()
    assert permuted["selection_bias"].tolist() == (-order).tolist()
    assert permuted["weight"][:, 0].tolist() == (3 * order).tolist()
    assert all(torch.equal(router[name], kept[name]) for name in kept)
    assert new_ids(order)[order].tolist() == list(range(8))


def test_groups_are_ranges_of_ids() -> None:
    assert expert_groups(FREE) is None
    groups = expert_groups(LIMITED)
    assert groups is not None
    assert groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_an_order_comes_from_a_placement(tmp_path: Path) -> None:
    folder = make_folder("qwen3", tmp_path)
    checkpoint = open_checkpoint(folder)
    spec, facts = checkpoint.spec, {"fingerprint": checkpoint.fingerprint, "layers": checkpoint.spec.moe_layers}
    groups = np.tile(np.array([1, 0, 1, 0, 1, 0, 1, 0, 1, 0]), (3, 1))
    placement = from_expert_device(groups, (5, 5), fingerprint=checkpoint.fingerprint, layers=spec.moe_layers)
    check_model(placement, checkpoint)
    orders = orders_of(placement, spec)
    assert orders[2].tolist() == [1, 3, 5, 7, 9, 0, 2, 4, 6, 8]
    expected, _ = SmoeRun(folder, torch.float32).run(TOKENS[:20], 20)
    actual, _ = Permuted(folder, orders).run(TOKENS[:20], 20)
    assert (actual - expected).abs().max() < LOGIT_TOLERANCE
    with pytest.raises(PlacementError, match=r"placement: 12 slots \(the 10 experts: copies are no new order"):
        orders_of(with_replicas(placement, [[[0], [1]]] * 3), spec)
    with pytest.raises(PlacementError, match=r"num_experts: 9 \(the model's layers have 10"):
        orders_of(contiguous(num_experts=9, num_devices=3, **facts), spec)
    with pytest.raises(PlacementError, match="fingerprint: 'other'"):
        check_model(replace(placement, fingerprint="other"), checkpoint)
    with pytest.raises(PlacementError, match=r"layers: \[0, 1\] \(the model's MoE layers are \[0, 1, 2\]"):
        orders_of(replace(placement, layers=(0, 1), slot2expert=placement.slot2expert[:2]), spec)


def test_a_placement_that_splits_groups_gives_no_order(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_folder("deepseek-v3-groups", tmp_path))
    facts = {"fingerprint": checkpoint.fingerprint, "layers": checkpoint.spec.moe_layers}
    orders_of(contiguous(num_experts=24, num_devices=4, **facts), checkpoint.spec)
    odd = from_expert_device(np.tile(np.arange(24) % 4, (2, 1)), (6,) * 4, **facts)
    with pytest.raises(PlacementError, match=r"placement: layer 1: group 0 \(experts 0 to 2\) is split over places"):
        orders_of(odd, checkpoint.spec)
