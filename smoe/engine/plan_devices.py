"""What each of several devices will hold, worked out from headers before any worker starts."""

from dataclasses import dataclass

import torch

from smoe.collectives.expert_map import held_experts
from smoe.core.config import EngineConfig
from smoe.core.expert_memory import ExpertMemory
from smoe.core.placement import Placement
from smoe.engine.parallel import check_parallel
from smoe.engine.plan import compute_dtype, context_length, state_bytes
from smoe.engine.rank_experts import rank_tiers
from smoe.models.kv import bytes_per_row
from smoe.models.loading import Checkpoint
from smoe.models.tensor_parallel import TensorShare
from smoe.offload.build import most_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """All figures in bytes unless named otherwise. `group` is the data-parallel group of the device.

    `experts` count those of all layers that lie there, copies of other devices' included; `expert_slots` of them are in
    memory at a time: None with `expert_memory=auto`, which is as many as there is room for where the device is.
    `experts_bytes` is all that they may take, host memory to copy from (`host_bytes`) included, None likewise.
    `kv_bytes` are of `kv_rows` for every request of the group at full length: of fewer, where there is less room.
    """

    device: int
    group: int
    attention_bytes: int
    vocabulary_bytes: int
    other_bytes: int
    experts: int
    expert_slots: int | None
    experts_bytes: int | None
    host_bytes: int
    kv_rows: int
    kv_bytes: int
    state_bytes: int

    @property
    def nbytes(self) -> int:
        """Of all that is known."""
        dense = self.attention_bytes + self.vocabulary_bytes + self.other_bytes
        return dense + (self.experts_bytes or 0) + self.kv_bytes + self.state_bytes


def plan_devices(checkpoint: Checkpoint, config: EngineConfig) -> tuple[DevicePlan, ...]:
    """Reads nothing. Raises what check_parallel raises, and ConfigError for what no device could hold."""
    placement = check_parallel(checkpoint, config)
    dtype = compute_dtype(checkpoint.spec, config)
    return tuple(_plan(checkpoint, config, placement, device, dtype) for device in range(config.parallel.size))


def _plan(
    checkpoint: Checkpoint, config: EngineConfig, placement: Placement, device: int, dtype: torch.dtype
) -> DevicePlan:
    spec, (group, place) = checkpoint.spec, divmod(device, config.parallel.tensor_parallel_size)
    share = TensorShare(spec, place, config.parallel.tensor_parallel_size)
    local = share.local_spec()
    by_part = {"attention": 0, "vocabulary": 0, "other": 0}
    for name, nbytes in checkpoint.param_nbytes(dtype=dtype, part=share.cut).items():
        by_part[_part_of(name)] += nbytes
    rows = config.max_num_seqs * context_length(spec, config)
    slots, experts_bytes, host_bytes = _experts(checkpoint, config, placement, device, dtype)
    return DevicePlan(
        device=device,
        group=group,
        attention_bytes=by_part["attention"],
        vocabulary_bytes=by_part["vocabulary"],
        other_bytes=by_part["other"],
        experts=int(placement.on_device[:, :, device].sum()),
        expert_slots=slots,
        experts_bytes=experts_bytes,
        host_bytes=host_bytes,
        kv_rows=rows,
        kv_bytes=rows * bytes_per_row(local, dtype),
        state_bytes=state_bytes(local) * config.max_num_seqs,
    )


def _part_of(name: str) -> str:
    if name.startswith(("embed", "head.")):
        return "vocabulary"
    return "attention" if ".attn." in name else "other"


def _experts(
    checkpoint: Checkpoint, config: EngineConfig, placement: Placement, device: int, dtype: torch.dtype
) -> tuple[int | None, int | None, int]:
    """Slots, and bytes of all and of host memory alone."""
    memory = ExpertMemory.parse(config.expert_memory)
    if memory.kind == "all":
        held = held_experts(placement, device)
        keys = [(layer, expert) for layer, experts in held.items() for expert in experts]
        return len(keys), sum(checkpoint.expert_source(*key).assembled_nbytes(dtype) for key in keys), 0
    tiers = rank_tiers(checkpoint, config, placement, device, dtype)
    if memory.kind == "auto":
        return None, None, tiers.host_bytes
    slots = tiers.above.slots(memory, free_bytes=0)
    most = most_slots(tiers.above, config, slots)
    return slots, most * tiers.above.slot_bytes + tiers.above.staging_bytes + tiers.host_bytes, tiers.host_bytes
