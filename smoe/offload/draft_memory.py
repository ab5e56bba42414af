"""What a draft takes of the memory for experts."""

import math

import torch

from smoe.core.draft import LOOKUP_DRAFT, SELF_DRAFT, DraftConfig
from smoe.core.errors import ConfigError
from smoe.core.expert_memory import ExpertMemory
from smoe.models.loading import Checkpoint, open_checkpoint
from smoe.models.quantised import int4_nbytes
from smoe.offload.shelf import Shelf


def draft_nbytes(draft: DraftConfig | None, checkpoint: Checkpoint, dtype: torch.dtype) -> int:
    """Weights of a draft for `checkpoint`, from headers. Raises CheckpointError for a draft model that is not there."""
    if draft is None or draft.model == LOOKUP_DRAFT:
        return 0
    if draft.model == SELF_DRAFT:
        return int4_nbytes(checkpoint.spec, draft.group_size)
    model = open_checkpoint(draft.model)
    layers = model.spec.moe_layers
    experts = sum(
        model.expert_source(layer, 0).assembled_nbytes(dtype) * model.spec.moe(layer).router.num_experts
        for layer in layers
    )
    return model.params_nbytes(dtype=dtype) + experts


def slots_beside_draft(
    shelf: Shelf, memory: ExpertMemory, draft_bytes: int, *, free_bytes: int, field: str = "expert_memory"
) -> int:
    """Slots over all layers that `memory` buys when a draft takes `draft_bytes` of it. `auto` takes `free_bytes`, of
    which the draft's are not.

    Raises ConfigError below one slot a layer.
    """
    if not draft_bytes or memory.kind in ("all", "auto"):
        return shelf.slots(memory, free_bytes=free_bytes, field=field)
    layers = len(shelf.spec.moe_layers)
    if memory.kind == "bytes":
        budget = int(memory.value)
        count = min((budget - shelf.staging_bytes - draft_bytes) // shelf.slot_bytes, shelf.num_experts)
    else:
        bought = shelf.slots(memory, free_bytes=0, field=field)
        budget = bought * shelf.slot_bytes
        count = bought - math.ceil(draft_bytes / shelf.slot_bytes)
    if count < layers:
        limit = (
            f"{draft_bytes} of them for the draft, and then one expert a layer: {layers} of {shelf.slot_bytes} bytes"
        )
        raise ConfigError(field, f"{budget} bytes", limit)
    return count
