"""One rank of a model that several devices share."""

from dataclasses import dataclass

import torch

from smoe.collectives.dispatch import Dispatcher
from smoe.collectives.expert_map import expert_places, held_experts
from smoe.collectives.group import Group
from smoe.collectives.schedules.plain import AllReduce, Scatter
from smoe.collectives.schedules.protocol import Schedule
from smoe.collectives.world import World, WorldPlan
from smoe.core.config import EngineConfig
from smoe.core.errors import CapacityError, ConfigError
from smoe.core.parallel import ParallelConfig
from smoe.core.placement import Placement
from smoe.core.placement_build import contiguous
from smoe.core.placement_file import read_placement
from smoe.engine.device import compute_device
from smoe.engine.live_placement import LivePlacement
from smoe.engine.memory import free_bytes
from smoe.engine.model_facts import model_info
from smoe.engine.plan import compute_dtype, context_length
from smoe.engine.runner import Runner
from smoe.engine.tokenizer import load_tokenizer
from smoe.kernels import ExpertTensors
from smoe.models.decoder import Decoder
from smoe.models.dispatched import DispatchedBank, RankBank
from smoe.models.kv import KVCache, bytes_per_row
from smoe.models.loading import Checkpoint, open_checkpoint
from smoe.models.loading.arena import carve
from smoe.models.permute import check_model
from smoe.models.spread import TensorParallel
from smoe.models.tensor_parallel import TensorShare, check_size

_SLACK = 0.1  # of the memory free now that stays so: activations, buffers of exchanges


def check_parallel(checkpoint: Checkpoint, config: EngineConfig) -> Placement:
    """The placement that `config.parallel` asks for, before any worker starts. Raises ConfigError or PlacementError."""
    parallel, spec = config.parallel, checkpoint.spec
    check_size(spec, parallel.tensor_parallel_size)
    for name, wanted in (("expert_memory", "all"), ("record_routes", None)):
        if getattr(config, name) != wanted:
            raise ConfigError(name, getattr(config, name), f"{wanted} on several devices")
    compute_device(config)
    if parallel.placement is None:
        experts = spec.moe(spec.moe_layers[0]).router.num_experts
        return contiguous(
            fingerprint=checkpoint.fingerprint, num_experts=experts, layers=spec.moe_layers, num_devices=parallel.size
        )
    placement = read_placement(parallel.placement)
    check_placement(placement, checkpoint, parallel, parallel.placement)
    return placement


def check_placement(placement: Placement, checkpoint: Checkpoint, parallel: ParallelConfig, name: str) -> None:
    """That `placement`, from `name`, is of this model, for so many devices, and has the tables that `parallel` needs.

    Raises ConfigError or PlacementError.
    """
    check_model(placement, checkpoint, name)
    for field, value in (("schedule", "speculative"), ("data_parallel_routing", "tables")):
        if getattr(parallel, field) == value and placement.tables is None:
            raise ConfigError("placement", name, f"with token tables, for {field} {value}")
    if placement.num_devices != parallel.size:
        limit = f"{parallel.size} devices; it was made for {placement.num_devices}"
        raise ConfigError("placement", name, limit)


def build_rank_runner(config: EngineConfig, plan: WorldPlan) -> Runner:
    """Joins the others, then loads this rank's part. Raises CollectiveError, and what check_parallel raises,
    CheckpointError, or CapacityError when no rows are left for the KV cache.
    """
    checkpoint = open_checkpoint(config.model)
    placement = check_parallel(checkpoint, config)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    world = World(plan)
    try:
        return _load(checkpoint, config, world, placement)
    except BaseException:
        world.close()
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """What one rank holds in memory: `params` of its share in the tensor-parallel group `tensor`, and in `local` its
    experts of those that all ranks, `group`, share."""

    share: TensorShare
    group: Group
    tensor: Group
    placement: Placement
    params: dict[str, torch.Tensor]
    local: RankBank
    dtype: torch.dtype

    def decoder(self, schedule: Schedule, *, dedup: bool = True) -> tuple[Decoder, DispatchedBank]:
        """The model as this rank runs it, and its experts as the layers see them. Several may share a part."""
        bank = self.bank(schedule, dedup=dedup)
        return self.decoder_of(bank, self.spread(schedule)), bank

    def bank(self, schedule: Schedule, *, dedup: bool = True) -> DispatchedBank:
        places = expert_places(self.placement, self.group.rank)
        return DispatchedBank(self.local, Dispatcher(self.group, dedup=dedup), places, schedule)

    def spread(self, schedule: Schedule) -> TensorParallel:
        return TensorParallel(self.tensor, schedule, self.share)

    def decoder_of(self, bank: DispatchedBank, spread: TensorParallel) -> Decoder:
        return Decoder(self.share.local_spec(), self.params, bank, dtype=self.dtype, spread=spread)


def load_part(
    checkpoint: Checkpoint, group: Group, placement: Placement, dtype: torch.dtype, tensor: Group | None = None
) -> RankPart:
    """Reads this rank's experts, and of each other tensor keeps its part. `tensor` is its tensor-parallel
    group, by default all of `group`.

    Raises CheckpointError.
    """
    tensor = tensor or group
    share = TensorShare(checkpoint.spec, tensor.rank, tensor.size)
    held = held_experts(placement, group.rank)
    local = RankBank(checkpoint.spec, held, lambda layer, expert: checkpoint.read_expert(layer, expert, dtype=dtype))
    params = checkpoint.params(dtype=dtype, part=share.cut)
    return RankPart(
        share=share, group=group, tensor=tensor, placement=placement, params=params, local=local, dtype=dtype
    )


def _load(checkpoint: Checkpoint, config: EngineConfig, world: World, placement: Placement) -> Runner:
    spec, dtype, group = checkpoint.spec, compute_dtype(checkpoint.spec, config), world.all
    tensor = world.stretch(config.parallel.tensor_parallel_size)
    schedule = make_schedule(config.parallel, tensor, placement)
    free = free_bytes() // world.plan.ranks_on_host
    part = load_part(checkpoint, group, placement, dtype, tensor)
    bank, spread = part.bank(schedule, dedup=config.parallel.dedup), part.spread(schedule)
    decoder = part.decoder_of(bank, spread)
    dense_bytes = sum(tensor.nbytes for tensor in part.params.values())
    left = int((1 - _SLACK) * free) - dense_bytes - part.local.held.nbytes
    max_model_len, row_bytes = context_length(spec, config), bytes_per_row(decoder.spec, dtype)
    rows = _common_rows(group, left, row_bytes, config.max_num_seqs * max_model_len)
    kv = KVCache(decoder.spec, num_rows=rows, num_states=config.max_num_seqs, dtype=dtype)
    info = model_info(
        checkpoint,
        load_tokenizer(checkpoint.folder),
        dtype=dtype,
        max_model_len=max_model_len,
        expert_bytes=checkpoint.expert_source(spec.moe_layers[0], 0).assembled_nbytes(dtype),
        dense_bytes=dense_bytes,
    )
    mine = world.plan.rank // tensor.size
    room = part.local.held.nbytes + left - rows * row_bytes
    live = live_placement(checkpoint, config.parallel, part, bank, spread, room_bytes=room)
    samples = tensor.rank == 0
    return Runner(decoder, kv, bank, info, world=world, group=mine, samples=samples, place=live.apply)


def live_placement(
    checkpoint: Checkpoint,
    parallel: ParallelConfig,
    part: RankPart,
    bank: DispatchedBank,
    spread: TensorParallel,
    *,
    room_bytes: int,
) -> LivePlacement:
    """Of what this rank runs. Its experts may take `room_bytes`, those that it gives up included until they are."""

    def empty(layer: int, expert: int) -> ExpertTensors:
        source = checkpoint.expert_source(layer, expert)
        return carve(torch.empty(source.assembled_nbytes(part.dtype), dtype=torch.uint8), source, part.dtype)

    return LivePlacement(
        group=part.group,
        placement=part.placement,
        local=part.local,
        bank=bank,
        spread=spread,
        empty=empty,
        expert_bytes=lambda layer, expert: checkpoint.expert_source(layer, expert).assembled_nbytes(part.dtype),
        check=lambda placement, name: check_placement(placement, checkpoint, parallel, name),
        make_schedule=lambda placement: make_schedule(parallel, part.tensor, placement),
        room_bytes=room_bytes,
    )


def _common_rows(group: Group, left_bytes: int, row_bytes: int, wanted: int) -> int:
    """KV rows for which every rank has room."""
    rows = min(wanted, left_bytes // row_bytes) if row_bytes else wanted
    rows = int(group.all_gather(torch.tensor([rows]), "sizes").min())
    if rows < 2:
        raise CapacityError(f"KV memory: {max(0, left_bytes)} bytes are left on a rank for rows of {row_bytes} bytes")
    return rows


def make_schedule(parallel: ParallelConfig, group: Group, placement: Placement) -> Schedule:
    """Of the tensor-parallel `group`. Raises ConfigError for a placement that lacks what the schedule needs."""
    if parallel.schedule == "allreduce":
        return AllReduce(group)
    if parallel.schedule == "scatter":
        return Scatter(group)
    from smoe.collectives.schedules.speculative import Speculative

    if placement.tables is None:
        raise ConfigError("placement", parallel.placement, "with token tables, for schedule speculative")
    return Speculative(group, placement.tables, placement.layers, capacity_factor=parallel.capacity_factor)
