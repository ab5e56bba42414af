"""From a configuration to an expert bank."""

import os
from collections.abc import Collection
from typing import TypeVar

import torch

from smoe.core.config import DEFAULT_POLICY, EngineConfig
from smoe.core.draft import SELF_DRAFT
from smoe.core.errors import ConfigError
from smoe.core.expert_memory import ExpertMemory
from smoe.core.expert_tier import ExpertTier
from smoe.core.link_model import LinkModel
from smoe.kernels import ExpertTensors
from smoe.models.bank import ExpertBank, ResidentBank
from smoe.models.loading import Checkpoint
from smoe.models.residual import check_dtypes
from smoe.models.residual_file import ResidualFile
from smoe.offload.ahead import PAUSE_SHARE
from smoe.offload.bank import OffloadedBank
from smoe.offload.draft_memory import slots_beside_draft
from smoe.offload.layer_pass import ROLLING
from smoe.offload.policies.catalog import Geometry
from smoe.offload.policies.spec import PolicySpec, parse_policies
from smoe.offload.shelf import Shelf
from smoe.offload.tiers import TierPlan, open_tiers, plan_tiers

Bank = TypeVar("Bank", bound=OffloadedBank)

POISON_VARIABLE = "SMOE_DEBUG_POISON"
"""Set to 1, memory of experts that holds nothing is filled with NaN."""

DEMAND_POLICY, DRAFT_POLICY = "evict=lru", "evict=utility"
"""A window asks for most experts of a layer, each once: what was used last says little about the next window."""


def make_bank(
    checkpoint: Checkpoint,
    config: EngineConfig,
    dtype: torch.dtype,
    *,
    free_bytes: int = 0,
    draft_bytes: int = 0,
    residuals: ResidualFile | None = None,
) -> ExpertBank:
    """For arithmetic in `dtype`. `expert_memory=auto` takes `free_bytes`, and keeps all experts if they fit; of another
    budget a draft takes `draft_bytes`. Experts are read as `residuals`, if given.

    Raises ConfigError for policies that cannot work here or a budget below one expert a layer before anything is read,
    StoreError or CheckpointError for files that cannot be read.
    """
    memory = ExpertMemory.parse(config.expert_memory)
    if memory.kind == "all":
        return _resident(checkpoint, dtype)
    tiers = planned_tiers(checkpoint, config, dtype)
    num_slots = slots_beside_draft(tiers.above, memory, draft_bytes, free_bytes=free_bytes)
    if memory.kind == "auto" and num_slots == tiers.above.num_experts:
        return _resident(checkpoint, dtype)
    return open_bank(OffloadedBank, tiers, config, num_slots, draft_bytes=draft_bytes, residuals=residuals)


def planned_tiers(checkpoint: Checkpoint, config: EngineConfig, dtype: torch.dtype) -> TierPlan:
    """Of one device that holds all experts. Reads nothing; raises ConfigError for what cannot be."""
    shelf = Shelf(checkpoint.spec, checkpoint.expert_source, dtype)
    residual = config.draft is not None and config.draft.residual
    if residual:
        check_dtypes(checkpoint, dtype)
    return plan_tiers(shelf, ExpertTier.parse(config.expert_tier), residual=residual)


def open_bank(
    kind: type[Bank],
    tiers: TierPlan,
    config: EngineConfig,
    num_slots: int,
    *,
    draft_bytes: int = 0,
    residuals: ResidualFile | None = None,
) -> Bank:
    """A bank of the experts of `tiers`, with `num_slots` over all layers. Raises as make_bank does."""
    shelf, spec = tiers.above, tiers.above.spec
    policy = live_policy(config, tiers.tiers)
    router = spec.moe(spec.moe_layers[0]).router
    geometry = Geometry(layers=spec.moe_layers, num_experts=router.num_experts, top_k=router.top_k)
    policies = policy.build(geometry, seed=config.seed)
    max_slots = most_slots(shelf, config, num_slots, draft_bytes)
    floor, poison = num_slots // len(spec.moe_layers), os.environ.get(POISON_VARIABLE) == "1"
    link = None if config.expert_link is None else LinkModel.parse(config.expert_link, "expert_link")
    store, in_place = open_tiers(tiers, poison=poison, link=link, residuals=residuals)
    try:
        return kind(
            shelf,
            store,
            policies,
            num_slots=num_slots,
            max_slots=max_slots,
            floor=floor,
            pause_share=PAUSE_SHARE,
            in_place=in_place,
            rolling=None if config.draft is None else ROLLING,
            poison=poison,
        )
    except BaseException:
        store.close()
        raise


def most_slots(shelf: Shelf, config: EngineConfig, num_slots: int, draft_bytes: int = 0) -> int:
    """That the engine may grow to from `num_slots`. Raises ConfigError when they are more than that."""
    if config.expert_memory_max is None:
        return num_slots
    field = "expert_memory_max"
    memory = ExpertMemory.parse(config.expert_memory_max, field)
    most = slots_beside_draft(shelf, memory, draft_bytes, free_bytes=0, field=field)
    if most < num_slots:
        limit = f"at least expert_memory: {num_slots} slots over all layers, these are {most}"
        raise ConfigError(field, config.expert_memory_max, limit)
    return most


def resize(
    bank: OffloadedBank, checkpoint: Checkpoint, config: EngineConfig, dtype: torch.dtype, draft_bytes: int, memory: str
) -> int:
    """The bank that make_bank made of the rest gets the slots that `memory` buys: how many, over all layers.

    Raises ConfigError beyond `expert_memory_max` and below one slot a layer.
    """
    wanted = ExpertMemory.parse(memory)
    if wanted.kind == "auto":
        raise ConfigError("expert_memory", memory, "a size: what is free is known before an engine loads")
    tiers = planned_tiers(checkpoint, config, dtype)
    num_slots = slots_beside_draft(tiers.above, wanted, draft_bytes, free_bytes=0)
    most = most_slots(tiers.above, config, 0, draft_bytes)
    if num_slots > most:
        limit = f"up to expert_memory_max: {most} slots over all layers, these are {num_slots}"
        raise ConfigError("expert_memory", memory, limit)
    bank.resize(num_slots)
    return num_slots


def live_policy(config: EngineConfig, tiers: Collection[str]) -> PolicySpec:
    """`auto` is another one beside a self-draft. Raises ConfigError for a text that is no policy, or for one that
    cannot work live with experts in `tiers`."""
    text = config.expert_policy
    if text == DEFAULT_POLICY:
        text = DRAFT_POLICY if config.draft is not None and config.draft.model == SELF_DRAFT else DEMAND_POLICY
    policy = parse_policies(text)
    policy.check_tiers(tiers)
    policy.check_live()
    return policy


def _resident(checkpoint: Checkpoint, dtype: torch.dtype) -> ResidentBank:
    layers: dict[int, list[ExpertTensors]] = {}

    def read(layer: int, expert: int) -> ExpertTensors:
        if layer not in layers:
            layers[layer] = checkpoint.read_layer(layer, dtype=dtype)
        return layers[layer][expert]

    return ResidentBank(checkpoint.spec, read)
