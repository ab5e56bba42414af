"""What lies between files and slots: nothing, or host memory with all experts or a part of them."""

from collections.abc import Collection
from dataclasses import dataclass

from smoe.core.expert_tier import FIELD, ExpertTier
from smoe.core.link_model import LinkModel
from smoe.models.residual_file import ResidualFile
from smoe.offload.copies import CopyEngine
from smoe.offload.emulated import EmulatedStore
from smoe.offload.host import HostMemory
from smoe.offload.host_store import HostStore, fill_all
from smoe.offload.in_place import InPlace
from smoe.offload.layout import SlotLayout
from smoe.offload.readahead import measured_readahead
from smoe.offload.residual_store import ResidualStore, residual_layouts
from smoe.offload.shelf import ResidualForm, Shelf, SlotForm
from smoe.offload.store import DiskStore, Store


@dataclass(frozen=True, slots=True)
class TierPlan:
    """`above` is the shelf of `files` as the store delivers it; `host_slots` count all layers, 0 on disk alone.

    `tiers` are those that experts come from while the model runs, the farthest first. `host_bytes` is all that the
    host tier takes, staging included. With `residual` what is read of an expert is what its 4-bit copy does not know.
    """

    files: Shelf
    above: Shelf
    host_slots: int
    host_bytes: int
    tiers: tuple[str, ...]
    residual: bool = False


def plan_tiers(files: Shelf, tier: ExpertTier, *, residual: bool = False) -> TierPlan:
    """Reads nothing. `residual` is for the disk tier. Raises ConfigError for host memory below one expert a layer."""
    if residual:
        assert tier.kind == "disk"
        return TierPlan(files, ResidualForm(files), 0, 0, tier.tiers, residual=True)
    if tier.kind == "disk":
        return TierPlan(files, files, 0, 0, tier.tiers)
    slots = files.num_experts
    if tier.host_memory is not None:
        slots = files.slots(tier.host_memory, free_bytes=0, field=FIELD)
    tiers = ("host",) if slots == files.num_experts else tier.tiers
    return TierPlan(files, SlotForm(files), slots, slots * files.slot_bytes + files.staging_bytes, tiers)


def open_tiers(
    plan: TierPlan,
    *,
    poison: bool = False,
    copies: CopyEngine | None = None,
    link: LinkModel | None = None,
    residuals: ResidualFile | None = None,
) -> tuple[Store, InPlace | None]:
    """The store, which frees everything when closed, and what can be computed where it is. Reads all experts if all are
    to be in host memory. `copies` knows where slots are, by default in this process's memory. `link` slows the last
    link; `residuals` are those of a plan with residual. Raises StoreError.
    """
    if residuals is not None:
        assert isinstance(plan.above, ResidualForm)
        layouts = residual_layouts(residuals)
        return ResidualStore(_slowed(_disk(layouts.values()), link), plan.above, residuals, layouts), None
    store, in_place = _open_whole(plan, poison, copies)
    return _slowed(store, link), in_place


def _slowed(store: Store, link: LinkModel | None) -> Store:
    return store if link is None else EmulatedStore(store, link)


def _disk(layouts: Collection[SlotLayout]) -> DiskStore:
    readahead = measured_readahead(list(layouts))
    return DiskStore(layouts, num_threads=readahead.num_threads, chunk_bytes=readahead.chunk_bytes)


def _open_whole(plan: TierPlan, poison: bool, copies: CopyEngine | None) -> tuple[Store, InPlace | None]:
    disk = _disk(plan.files.layouts)
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
