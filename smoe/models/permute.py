"""Experts renumbered, so that those of one device follow each other: the model computes the same function.

An order q names old experts by their new ids, q[new] = old. Router rows and vectors and the list of experts are taken
in that order; whoever the router chose is then chosen under its new id. What changes is rounding: an expert's weight
is a quotient whose sum runs in another order, and outputs are summed in ascending id. That is all, save for routers
that are limited to groups of experts: a group is a range of ids, so only an order that moves whole groups is harmless.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from smoe.core.errors import PlacementError
from smoe.core.placement import Placement, check_fits
from smoe.models.loading import Checkpoint
from smoe.models.spec import DecoderSpec, RouterSpec

Order = npt.NDArray[np.integer]
T = TypeVar("T")
E = TypeVar("E")

ROUTER_TENSORS = ("weight", "bias", "selection_bias")


def permute_layer(
    spec: RouterSpec, router: Mapping[str, torch.Tensor], experts: Sequence[E], order: Order
) -> tuple[dict[str, torch.Tensor], list[E]]:
    """One layer's router tensors (`weight` [E, D], and `bias`, `selection_bias` [E] where the family has them) and its
    experts, in `order` [E]. The arguments stay as they are. Raises PlacementError as `check_order` does."""
    check_order(spec, order)
    index = torch.from_numpy(np.asarray(order, dtype=np.int64))
    rows = {name: tensor.index_select(0, index.to(tensor.device)) for name, tensor in router.items()}
    return rows, [experts[old] for old in order.tolist()]


def permute_params(
    spec: DecoderSpec, params: Mapping[str, torch.Tensor], orders: Mapping[int, Order]
) -> dict[str, torch.Tensor]:
    """`params` by our dotted names with the routers of the decoder layers of `orders` permuted, the rest as it is."""
    permuted = dict(params)
    for layer, order in orders.items():
        prefix = f"layers.{layer}.moe.router"
        names = [name for name in ROUTER_TENSORS if f"{prefix}.{name}" in params]
        router = {name: params[f"{prefix}.{name}"] for name in names}
        rows, _ = permute_layer(spec.moe(layer).router, router, range(len(order)), order)
        permuted |= {f"{prefix}.{name}": tensor for name, tensor in rows.items()}
    return permuted


def permute_reader(read: Callable[[int, int], T], orders: Mapping[int, Order]) -> Callable[[int, int], T]:
    """`read(layer, expert)` for new ids, from one for old ids."""

    def read_new(layer: int, expert: int) -> T:
        return read(layer, int(orders[layer][expert]) if layer in orders else expert)

    return read_new


def new_ids(order: Order) -> Order:
    """[E]: the new id of each old one, the inverse of an order."""
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order), dtype=order.dtype)
    return inverse


def expert_groups(spec: RouterSpec) -> Order | None:
    """[E]: which group of experts the router counts each one to; None where it has no groups."""
    if spec.num_groups == 1:
        return None
    return np.arange(spec.num_experts) // (spec.num_experts // spec.num_groups)


def check_order(spec: RouterSpec, order: Order, name: str = "order") -> None:
    """Raises PlacementError for what is no permutation of the experts, or splits a group of a group-limited router."""
    experts = spec.num_experts
    seen = np.bincount(order[(order >= 0) & (order < experts)], minlength=experts)
    if len(order) != experts or (seen != 1).any():
        wrong = int((seen != 1).argmax())
        raise PlacementError(
            f"{name}: {len(order)} experts, of which {wrong} is named {seen[wrong]} times (each of {experts} once)"
        )
    groups = expert_groups(spec)
    if groups is None:
        return
    by_place = groups[order].reshape(spec.num_groups, -1)
    for group in range(spec.num_groups):
        places = np.flatnonzero((by_place == group).any(axis=1))
        if len(places) > 1:
            first, size = group * by_place.shape[1], by_place.shape[1]
            raise PlacementError(
                f"{name}: group {group} (experts {first} to {first + size - 1}) is split over places "
                f"{places.tolist()} of {size} experts (a router limited to groups needs them whole)"
            )


def orders_of(placement: Placement, spec: DecoderSpec, name: str = "placement") -> dict[int, Order]:
    """By decoder layer, the order in which a device's experts follow each other and the devices too.

    Raises PlacementError for a placement of another geometry, one with copies, or an order that is not harmless.
    """
    check_geometry(placement, spec, name)
    if placement.slot2expert.shape[1] != placement.num_experts:
        slots = placement.slot2expert.shape[1]
        raise PlacementError(f"{name}: {slots} slots (the {placement.num_experts} experts: copies are no new order)")
    orders = dict(zip(placement.layers, placement.slot2expert, strict=True))
    for layer, order in orders.items():
        check_order(spec.moe(layer).router, order, f"{name}: layer {layer}")
    return orders


def check_geometry(placement: Placement, spec: DecoderSpec, name: str = "placement") -> None:
    """That the placement's layers and experts are the model's. Raises PlacementError."""
    layers = spec.moe_layers
    check_fits(
        placement,
        num_experts=spec.moe(layers[0]).router.num_experts,
        layers=layers,
        vocab_size=spec.vocab,
        name=name,
    )


def check_model(placement: Placement, checkpoint: Checkpoint, name: str = "placement") -> None:
    """That the placement was made for this checkpoint. Raises PlacementError."""
    check_geometry(placement, checkpoint.spec, name)
    check_fits(
        placement,
        num_experts=placement.num_experts,
        layers=placement.layers,
        fingerprint=checkpoint.fingerprint,
        name=name,
    )
