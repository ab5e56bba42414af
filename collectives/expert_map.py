"""Which rank computes an expert for which other: from a placement of experts, perhaps with replicas."""

from collections.abc import Mapping

import torch

from smoe.core.placement import Placement

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
        on_device = torch.from_numpy(placement.on_device[index])
        holders_E = on_device.sum(dim=1)
        # The holder that comes `place` modulo their number after the first: senders are dealt to holders in turn.
        wanted_E = place % holders_E
        reached_EG = on_device.long().cumsum(dim=1) == (wanted_E + 1).unsqueeze(1)
        chosen_E = reached_EG.long().argmax(dim=1)
        places[layer] = torch.where(on_device[:, place], place, chosen_E)
    return places
