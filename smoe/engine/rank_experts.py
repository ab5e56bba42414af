"""What one rank of several keeps of the experts that a placement gives it: all of them, or some in slots."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import torch

from smoe.collectives.expert_map import held_experts
from smoe.collectives.group import Group
from smoe.core.config import EngineConfig
from smoe.core.errors import CapacityError, ConfigError
from smoe.core.expert_memory import ExpertMemory
from smoe.core.expert_tier import ExpertTier
from smoe.core.placement import Placement
from smoe.models.dispatched import RankBank
from smoe.models.loading import Checkpoint
from smoe.offload.build import live_policy, most_slots, open_bank
from smoe.offload.policies.spec import PolicySpec
from smoe.offload.rank_bank import RankOffloadedBank
from smoe.offload.shelf import Shelf
from smoe.offload.tiers import TierPlan, plan_tiers


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExperts:
    """`nbytes` is the most that they may take. `told`: the bank wants to know of rows more than it computes of them.

    `tiers` are those that experts come from, the farthest first; `resize` is None where all are resident.
    """

    bank: RankBank | RankOffloadedBank
    nbytes: int
    told: bool = False
    lossy: bool = False
    tiers: tuple[str, ...] = ()
    resize: Callable[[str], int] | None = None


def check_experts(checkpoint: Checkpoint, config: EngineConfig, placement: Placement, dtype: torch.dtype) -> None:
    """That every rank can have its share of the budgets, and policies that work there. Raises ConfigError."""
    memory = ExpertMemory.parse(config.expert_memory)
    if memory.kind == "all":
        return
    tiers = rank_tiers(checkpoint, config, placement, 0, dtype)
    check_policy(live_policy(config, tiers.tiers), dedup=config.parallel.dedup)
    for field in ("expert_memory", "expert_memory_max"):
        text = getattr(config, field)
        if text is not None and ExpertMemory.parse(text, field).kind != "auto":
            slots_of_ranks(tiers.above, placement, text, field)


def check_policy(policy: PolicySpec, *, dedup: bool) -> None:
    """Raises ConfigError for what needs a row's whole way through the layers, of which a rank sees some."""
    if policy.prefetch.name != "none":
        limit = "none on several devices: rows come to a device for single layers, their next ones are unknown there"
        raise ConfigError("policies.prefetch", policy.prefetch.name, limit)
    if dict(policy.miss.values).get("weight") == "own":
        limit = "inherit on several devices: a row's other experts have their weights already"
        raise ConfigError("policies.miss.substitute.weight", "own", limit)
    if policy.lossy and not dedup:
        raise ConfigError("dedup", dedup, "true with a lossy expert_policy, which looks at all of a row at once")


def open_experts(
    checkpoint: Checkpoint,
    config: EngineConfig,
    placement: Placement,
    group: Group,
    dtype: torch.dtype,
    *,
    free_bytes: int,
    auto_bytes: int,
) -> RankExperts:
    """Of the rank at `group.rank`, which must not take more than `free_bytes`; of them `auto` takes `auto_bytes`.

    Collective. Raises CheckpointError, StoreError or CapacityError.
    """
    memory, rank = ExpertMemory.parse(config.expert_memory), group.rank
    if memory.kind == "all":
        return resident_experts(checkpoint, placement, rank, dtype)
    tiers = rank_tiers(checkpoint, config, placement, rank, dtype)
    num_slots = tiers.above.slots(memory, free_bytes=auto_bytes - tiers.host_bytes)
    if memory.kind == "auto":
        fits = torch.tensor([num_slots == tiers.above.num_experts])
        if bool(group.all_gather(fits, "sizes").all()):
            return resident_experts(checkpoint, placement, rank, dtype)
    most = most_slots(tiers.above, config, num_slots)
    nbytes = most * tiers.above.slot_bytes + tiers.above.staging_bytes + tiers.host_bytes
    if nbytes > free_bytes:
        limit = f"{max(0, free_bytes)} bytes are free there beside the other weights"
        raise CapacityError(f"expert_memory: {config.expert_memory} takes {nbytes} bytes on rank {rank} ({limit})")
    policy = live_policy(config, tiers.tiers)
    bank = open_bank(RankOffloadedBank, tiers, config, num_slots)
    resizing = partial(_resize, bank, tiers.above, placement, config, rank)
    return RankExperts(
        bank=bank,
        nbytes=nbytes,
        told=wants_rows(policy),
        lossy=policy.lossy,
        tiers=tiers.tiers,
        resize=None if config.expert_memory_max is None else resizing,
    )


def resident_experts(checkpoint: Checkpoint, placement: Placement, rank: int, dtype: torch.dtype) -> RankExperts:
    held = held_experts(placement, rank)
    bank = RankBank(checkpoint.spec, held, lambda layer, expert: checkpoint.read_expert(layer, expert, dtype=dtype))
    return RankExperts(bank=bank, nbytes=bank.held.nbytes)


def rank_tiers(
    checkpoint: Checkpoint, config: EngineConfig, placement: Placement, rank: int, dtype: torch.dtype
) -> TierPlan:
    """Budgets are the deployment's: a rank has the share that its experts are of all that ranks hold, copies included.

    Reads nothing. Raises ConfigError.
    """
    held, slots = held_experts(placement, rank), placement.slots_of_device
    share = Fraction(slots[rank], sum(slots))
    shelf = Shelf(checkpoint.spec, checkpoint.expert_source, dtype, held=held, share=share)
    return plan_tiers(shelf, ExpertTier.parse(config.expert_tier))


def slots_of_ranks(shelf: Shelf, placement: Placement, text: str, field: str) -> list[int]:
    """What `text` buys each rank. Raises ConfigError where one gets less than a slot a layer."""
    memory, slots = ExpertMemory.parse(text, field), placement.slots_of_device
    found = []
    for rank, held in enumerate(slots):
        try:
            found.append(shelf.slots_of(held, Fraction(held, sum(slots)), memory, 0, field))
        except ConfigError as error:
            raise ConfigError(field, text, f"for the share of rank {rank}, {error.value}: {error.limit}") from error
    return found


def wants_rows(policy: PolicySpec) -> bool:
    """Whether a policy goes by the weights of a row's choices, so that those elsewhere matter."""
    by_mass = dict(policy.evict.values).get("signal") == "mass"
    return policy.lossy or by_mass or policy.admit.name != "always"


def _resize(
    bank: RankOffloadedBank, shelf: Shelf, placement: Placement, config: EngineConfig, rank: int, memory: str
) -> int:
    """The same answer on every rank: slots over all layers and ranks, or ConfigError, when nothing has changed."""
    if ExpertMemory.parse(memory).kind == "auto":
        raise ConfigError("expert_memory", memory, "a size: what is free is known before an engine loads")
    assert config.expert_memory_max is not None
    wanted = slots_of_ranks(shelf, placement, memory, "expert_memory")
    most = slots_of_ranks(shelf, placement, config.expert_memory_max, "expert_memory_max")
    if any(w > m for w, m in zip(wanted, most, strict=True)):
        limit = f"up to expert_memory_max: {sum(most)} slots over all layers and devices, these are {sum(wanted)}"
        raise ConfigError("expert_memory", memory, limit)
    bank.resize(wanted[rank])
    return sum(wanted)
