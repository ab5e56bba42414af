"""From a configuration to something that runs."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError
from smoe.core.parallel import ParallelConfig
from smoe.core.placement import Placement
from smoe.core.placement_file import read_placement
from smoe.core.step import Executor
from smoe.engine.core import EngineCore
from smoe.engine.device import compute_device
from smoe.engine.draft.build import Target, make_residuals, make_speculation
from smoe.engine.draft.known_depth import most_draft_tokens
from smoe.engine.local import LocalClient
from smoe.engine.lookahead_bank import LookaheadBank
from smoe.engine.model_facts import planned_model_info
from smoe.engine.plan import compute_dtype, plan_memory
from smoe.engine.recorder import RouteRecorder
from smoe.engine.runner import Runner
from smoe.engine.tokenizer import load_tokenizer
from smoe.models.decoder import Decoder
from smoe.models.kv import KVCache
from smoe.models.loading import model_folder, open_checkpoint
from smoe.models.route_counts import RouteCounts
from smoe.offload.bank import OffloadedBank
from smoe.offload.build import make_bank, resize
from smoe.sched.routing import Affinity


def build_runner(config: EngineConfig) -> Runner:
    """Checks folder, budget and limits first, then loads. Sets torch's number of threads when `threads` is given.

    Raises ConfigError, CheckpointError or CapacityError.
    """
    for name in ("tensor_parallel_size", "data_parallel_size"):
        if (size := getattr(config.parallel, name)) > 1:
            raise ConfigError(name, size, "1 in one process: several devices need an actor each")
    device = compute_device(config)
    checkpoint = open_checkpoint(config.model)
    plan = plan_memory(checkpoint, config)
    tokenizer = load_tokenizer(checkpoint.folder)
    info = planned_model_info(checkpoint, plan, tokenizer)
    if config.draft is not None:
        info = replace(info, draft_tokens=most_draft_tokens(config.draft, checkpoint.fingerprint))
    routes = config.record_routes
    recorder = None
    if routes is not None:
        parts = config.record_part_tokens
        recorder = RouteRecorder(routes, info, logits=config.record_logits, part_tokens=parts)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    dtype = compute_dtype(checkpoint.spec, config)
    residuals = None
    if config.draft is not None and config.draft.residual:
        residuals = make_residuals(checkpoint, config.draft)
    bank = experts = make_bank(
        checkpoint,
        config,
        dtype,
        free_bytes=plan.auto_bytes,
        draft_bytes=plan.draft_bytes,
        residuals=residuals,
    )
    resizing = None
    if config.expert_memory_max is not None and isinstance(bank, OffloadedBank):
        resizing = partial(resize, bank, checkpoint, config, dtype, plan.draft_bytes)
    if recorder is not None and config.record_lookahead:
        bank = LookaheadBank(bank, recorder.see_lookahead, last_layer=info.moe_layers[-1])
    try:
        params = checkpoint.params(dtype=dtype, device=device)
        counts = RouteCounts(checkpoint.spec)
        decoder = Decoder(checkpoint.spec, params, bank, dtype=dtype, counts=counts)
        kv = KVCache(checkpoint.spec, num_rows=plan.kv_rows, num_states=config.max_num_seqs, dtype=dtype, device=device)
        speculation = None
        if config.draft is not None:
            target = Target(
                checkpoint=checkpoint,
                tokenizer=tokenizer,
                params=params,
                kv=kv,
                bank=experts,
                dtype=dtype,
                device=device,
                residuals=residuals,
            )
            speculation = make_speculation(config.draft, target)
        return Runner(
            decoder,
            kv,
            bank,
            info,
            device=device,
            recorder=recorder,
            resize=resizing,
            speculation=speculation,
            counts=counts,
        )
    except BaseException:
        bank.close()
        raise


def build_core(config: EngineConfig, executor: Executor) -> EngineCore:
    """The engine of `config` over an executor that holds its model, here or in other processes."""
    affinity_of = _affinity_of(config.parallel)
    return EngineCore(
        executor,
        load_tokenizer(model_folder(config.model)),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        seed=config.seed,
        record_fraction=0.0 if config.record_routes is None else config.record_fraction,
        num_groups=config.parallel.data_parallel_size,
        affinity=None if affinity_of is None else affinity_of(read_placement(str(config.parallel.placement))),
        affinity_of=affinity_of,
    )


def build_local_client(config: EngineConfig) -> LocalClient:
    """An engine in this process. Raises as `build_runner` does."""
    runner = build_runner(config)
    try:
        return LocalClient(build_core(config, runner))
    except BaseException:
        runner.shutdown()
        raise


def _affinity_of(parallel: ParallelConfig) -> Callable[[Placement], Affinity] | None:
    if parallel.data_parallel_routing == "even":
        return None
    from smoe.sched.affinity import GroupAffinity

    def affinity(placement: Placement) -> Affinity:
        if placement.tables is None:
            raise ConfigError("placement", parallel.placement, "with token tables, for data_parallel_routing tables")
        return GroupAffinity(
            placement.tables, num_groups=parallel.data_parallel_size, devices_per_group=parallel.tensor_parallel_size
        )

    return affinity
