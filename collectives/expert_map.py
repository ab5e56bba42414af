"""Which rank computes an expert for which other: from a placement of experts, perhaps with replicas."""

from collections.abc import Mapping

import torch

from smoe.core.placement import Placement
from smoe.core.placement_maps import computing_device

Tensor = torch.Tensor


def held_experts(placement: Placement, place: int) -> dict[int, list[int]]:
    """By decoder layer, the experts at a place, ascending."""
    held = placement.on_device[:, :, place]
    return {layer: held[index].nonzero()[0].tolist() for index, layer in enumerate(placement.layers)}


def expert_places(placement: Placement, place: int) -> Mapping[int, Tensor]:
    """By decoder layer, [E] i64: where the rank at `place` sends rows for an expert. To itself where it can; else to
    one of the holders, different ones for different senders."""
    places: dict[int, Tensor] = {}
    for index, layer in enumerate(placement.layers):
        places[layer] = torch.from_numpy(computing_device(placement.on_device[index])[:, place]).long()
    return places
