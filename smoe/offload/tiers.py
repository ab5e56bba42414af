"""What lies between files and slots: nothing, or host memory with all experts or a part of them."""

from dataclasses import dataclass

from smoe.core.expert_tier import FIELD, ExpertTier
from smoe.offload.copies import CopyEngine
from smoe.offload.host import HostMemory
from smoe.offload.host_store import HostStore, fill_all
from smoe.offload.in_place import InPlace
from smoe.offload.readahead import measured_readahead
from smoe.offload.shelf import Shelf, SlotForm
from smoe.offload.store import DiskStore, Store


@dataclass(frozen=True, slots=True)
class TierPlan:
    """`above` is the shelf of `files` as the store delivers it; `host_slots` count all layers, 0 on disk alone.

    `tiers` are those that experts come from while the model runs, the farthest first. `host_bytes` is all that the
    host tier takes, staging included.
    """

    files: Shelf
    above: Shelf
    host_slots: int
    host_bytes: int
    tiers: tuple[str, ...]


def plan_tiers(files: Shelf, tier: ExpertTier) -> TierPlan:
    """Reads nothing. Raises ConfigError for host memory below one expert a layer."""
    if tier.kind == "disk":
        return TierPlan(files, files, 0, 0, tier.tiers)
    slots = files.num_experts
    if tier.host_memory is not None:
        slots = files.slots(tier.host_memory, free_bytes=0, field=FIELD)
    tiers = ("host",) if slots == files.num_experts else tier.tiers
    return TierPlan(files, SlotForm(files), slots, slots * files.slot_bytes + files.staging_bytes, tiers)


def open_tiers(
    plan: TierPlan, *, poison: bool = False, copies: CopyEngine | None = None
) -> tuple[Store, InPlace | None]:
    """The store, which frees everything when closed, and what can be computed where it is. Reads all experts if all are
    to be in host memory. `copies` knows where slots are, by default in this process's memory. Raises StoreError.
    """
    readahead = measured_readahead(plan.files.layouts)
    disk = DiskStore(plan.files.layouts, num_threads=readahead.num_threads, chunk_bytes=readahead.chunk_bytes)
    if plan.host_slots == 0:
        return disk, None
    memory = HostMemory(plan.files, plan.host_slots, poison=poison)
    below: Store | None = disk
    try:
        if plan.host_slots == plan.files.num_experts:
            fill_all(plan.files, memory, disk)
            disk.close()
            below = None
        return HostStore(plan.files, memory, below, copies), memory
    except BaseException:
        disk.close()
        memory.close()
        raise
