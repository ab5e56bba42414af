"""One rank of a model that several devices share."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from smoe.collectives.chunks import Chunks
from smoe.collectives.dispatch import Dispatcher
from smoe.collectives.expert_map import expert_places
from smoe.collectives.group import Group
from smoe.collectives.schedules.plain import AllReduce, Scatter
from smoe.collectives.schedules.protocol import Schedule
from smoe.collectives.world import World, WorldPlan
from smoe.core.config import EngineConfig
from smoe.core.errors import CapacityError, ConfigError, SmoeError
from smoe.core.parallel import ParallelConfig
from smoe.core.placement import Placement
from smoe.core.placement_build import contiguous
from smoe.core.placement_file import read_placement
from smoe.core.step import ExpertsMoved
from smoe.engine.device import compute_device
from smoe.engine.live_placement import LivePlacement
from smoe.engine.memory import free_bytes
from smoe.engine.model_facts import model_info
from smoe.engine.plan import KV_SHARE, compute_dtype, context_length
from smoe.engine.rank_experts import RankExperts, check_experts, open_experts, resident_experts
from smoe.engine.runner import Runner
from smoe.engine.tokenizer import load_tokenizer
from smoe.kernels import ExpertTensors
from smoe.models.decoder import Decoder
from smoe.models.dispatched import DispatchedBank, RankBank
from smoe.models.informed import Informed
from smoe.models.kv import KVCache, bytes_per_row
from smoe.models.loading import Checkpoint, open_checkpoint
from smoe.models.loading.arena import carve
from smoe.models.permute import check_model
from smoe.models.route_counts import RouteCounts
from smoe.models.spread import TensorParallel
from smoe.models.tensor_parallel import TensorShare, check_size

_SLACK = 0.1  # of the memory free now that stays so: activations, buffers of exchanges


def check_parallel(checkpoint: Checkpoint, config: EngineConfig) -> Placement:
    """The placement that `config.parallel` asks for, before any worker starts. Raises ConfigError or PlacementError."""
    parallel, spec = config.parallel, checkpoint.spec
    check_size(spec, parallel.tensor_parallel_size)
    if config.record_routes is not None:
        limit = "none on several devices, where each sees some of a request's rows: record on one"
        raise ConfigError("record_routes", config.record_routes, limit)
    compute_device(config)
    placement = _placement(checkpoint, parallel)
    check_experts(checkpoint, config, placement, compute_dtype(spec, config))
    return placement


def _placement(checkpoint: Checkpoint, parallel: ParallelConfig) -> Placement:
    spec = checkpoint.spec
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
    """What one rank holds: `params` of its share in the tensor-parallel group `tensor`, and its `experts` of those that
    all ranks, `group`, share."""

    share: TensorShare
    group: Group
    tensor: Group
    placement: Placement
    params: dict[str, torch.Tensor]
    experts: RankExperts
    dtype: torch.dtype

    @property
    def dense_bytes(self) -> int:
        return sum(param.nbytes for param in self.params.values())

    @property
    def local(self) -> RankBank:
        """The experts of a rank that keeps them all in memory."""
        assert isinstance(self.experts.bank, RankBank)
        return self.experts.bank

    def decoder(self, schedule: Schedule, *, dedup: bool = True) -> tuple[Decoder, DispatchedBank]:
        """The model as this rank runs it, and its experts as the layers see them. Several may share a part."""
        bank = self.bank(schedule, dedup=dedup)
        return self.decoder_of(bank, self.spread(schedule)), bank

    def bank(self, schedule: Schedule, *, dedup: bool = True, counts: RouteCounts | None = None) -> DispatchedBank:
        """`counts` of the decoder that it will be in."""
        places, own = expert_places(self.placement, self.group.rank), self.experts
        informed = Informed(own.bank, lossy=own.lossy) if own.told else None
        # A bank that moves experts is asked once a layer.
        chunks = Chunks() if isinstance(own.bank, RankBank) else Chunks(overlap_rows=None)
        dispatcher = Dispatcher(self.group, dedup=dedup, chunks=chunks)
        moved = None if counts is None else partial(counts.use, own=self.group.rank, size=self.group.size)
        return DispatchedBank(own.bank, dispatcher, places, schedule, informed, moved)

    def spread(self, schedule: Schedule) -> TensorParallel:
        return TensorParallel(self.tensor, schedule, self.share)

    def decoder_of(self, bank: DispatchedBank, spread: TensorParallel, counts: RouteCounts | None = None) -> Decoder:
        spec = self.share.local_spec()
        return Decoder(spec, self.params, bank, dtype=self.dtype, spread=spread, counts=counts)


def load_part(
    checkpoint: Checkpoint,
    group: Group,
    placement: Placement,
    dtype: torch.dtype,
    tensor: Group | None = None,
    open_experts: Callable[[int], RankExperts] | None = None,
) -> RankPart:
    """Reads this rank's part of each tensor, and its experts. `tensor` is its tensor-parallel group, by default all of
    `group`. `open_experts` makes something else of the experts, beside so many bytes of other weights.

    Raises CheckpointError, and what `open_experts` raises.
    """
    tensor = tensor or group
    share = TensorShare(checkpoint.spec, tensor.rank, tensor.size)
    params = checkpoint.params(dtype=dtype, part=share.cut)
    if open_experts is None:
        experts = resident_experts(checkpoint, placement, group.rank, dtype)
    else:
        experts = open_experts(sum(param.nbytes for param in params.values()))
    return RankPart(
        share=share, group=group, tensor=tensor, placement=placement, params=params, experts=experts, dtype=dtype
    )


def _load(checkpoint: Checkpoint, config: EngineConfig, world: World, placement: Placement) -> Runner:
    spec, dtype, group = checkpoint.spec, compute_dtype(checkpoint.spec, config), world.all
    tensor = world.stretch(config.parallel.tensor_parallel_size)
    schedule = make_schedule(config.parallel, tensor, placement)
    usable = int((1 - _SLACK) * (free_bytes() // world.plan.ranks_on_host))
    local_spec = TensorShare(spec, tensor.rank, tensor.size).local_spec()
    max_model_len, row_bytes = context_length(spec, config), bytes_per_row(local_spec, dtype)
    wanted_rows = config.max_num_seqs * max_model_len

    def own_experts(dense_bytes: int) -> RankExperts:
        left = usable - dense_bytes
        kv_bytes = min(wanted_rows * row_bytes, int(max(0, left) * KV_SHARE))
        return open_experts(
            checkpoint, config, placement, group, dtype, free_bytes=left, auto_bytes=max(0, left - kv_bytes)
        )

    part = load_part(checkpoint, group, placement, dtype, tensor, own_experts)
    counts = RouteCounts(spec)
    bank, spread = part.bank(schedule, dedup=config.parallel.dedup, counts=counts), part.spread(schedule)
    decoder = part.decoder_of(bank, spread, counts)
    own = part.experts
    left = usable - part.dense_bytes - own.nbytes
    rows = _common_rows(group, left, row_bytes, wanted_rows)
    kv = KVCache(decoder.spec, num_rows=rows, num_states=config.max_num_seqs, dtype=dtype)
    info = model_info(
        checkpoint,
        load_tokenizer(checkpoint.folder),
        dtype=dtype,
        max_model_len=max_model_len,
        expert_bytes=checkpoint.expert_source(spec.moe_layers[0], 0).assembled_nbytes(dtype),
        dense_bytes=part.dense_bytes,
        lossy=own.lossy,
        expert_tiers=own.tiers,
        emulated_link=config.expert_link if own.tiers else None,
    )
    mine = world.plan.rank // tensor.size
    place: Callable[[Placement, str], ExpertsMoved | SmoeError] = _fixed
    unread = None
    if isinstance(own.bank, RankBank):
        room = own.nbytes + left - rows * row_bytes
        place = live_placement(checkpoint, config.parallel, part, bank, spread, room_bytes=room).apply
    else:
        unread = own.bank.last_unread
    return Runner(
        decoder,
        kv,
        bank,
        info,
        world=world,
        group=mine,
        samples=tensor.rank == 0,
        resize=own.resize,
        unread=unread,
        place=place,
        counts=counts,
    )


def _fixed(placement: Placement, name: str) -> ConfigError:
    return ConfigError("placement", name, "as it is: experts move between devices only with expert_memory all")


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
        return AllReduce(group, in_order=parallel.deterministic)
    if parallel.schedule == "scatter":
        return Scatter(group)
    from smoe.collectives.schedules.speculative import Speculative

    if placement.tables is None:
        raise ConfigError("placement", parallel.placement, "with token tables, for schedule speculative")
    return Speculative(group, placement.tables, placement.layers, capacity_factor=parallel.capacity_factor)
