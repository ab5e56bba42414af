"""From a configuration to something that runs."""

import torch

from smoe.core.config import EngineConfig
from smoe.core.errors import ConfigError
from smoe.core.model_info import ModelInfo
from smoe.core.step import Executor
from smoe.engine.core import EngineCore
from smoe.engine.local import LocalClient
from smoe.engine.lookahead_bank import LookaheadBank
from smoe.engine.plan import MemoryPlan, compute_dtype, plan_memory
from smoe.engine.recorder import RouteRecorder
from smoe.engine.runner import Runner
from smoe.engine.tokenizer import Tokenizer, eos_token_ids, load_tokenizer
from smoe.models.decoder import Decoder
from smoe.models.kv import KVCache
from smoe.models.loading import Checkpoint, model_folder, open_checkpoint
from smoe.offload.build import make_bank


def build_runner(config: EngineConfig) -> Runner:
    """Checks folder, budget and limits first, then loads. Sets torch's number of threads when `threads` is given.

    Raises ConfigError, CheckpointError or CapacityError.
    """
    device = _device(config)
    checkpoint = open_checkpoint(config.model)
    plan = plan_memory(checkpoint, config)
    tokenizer = load_tokenizer(checkpoint.folder)
    info = model_info(checkpoint, plan, tokenizer)
    routes = config.record_routes
    recorder = None
    if routes is not None:
        parts = config.record_part_tokens
        recorder = RouteRecorder(routes, info, logits=config.record_logits, part_tokens=parts)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    dtype = compute_dtype(checkpoint.spec, config)
    bank = make_bank(checkpoint, config, dtype, free_bytes=plan.auto_bytes)
    if recorder is not None and config.record_lookahead:
        bank = LookaheadBank(bank, recorder.see_lookahead, last_layer=info.moe_layers[-1])
    try:
        decoder = Decoder(checkpoint.spec, checkpoint.params(dtype=dtype, device=device), bank, dtype=dtype)
        kv = KVCache(checkpoint.spec, num_rows=plan.kv_rows, num_states=config.max_num_seqs, dtype=dtype, device=device)
        return Runner(decoder, kv, bank, info, device=device, recorder=recorder)
    except BaseException:
        bank.close()
        raise


def build_core(config: EngineConfig, executor: Executor) -> EngineCore:
    """The engine of `config` over an executor that holds its model, here or in other processes."""
    return EngineCore(
        executor,
        load_tokenizer(model_folder(config.model)),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        seed=config.seed,
        record_fraction=0.0 if config.record_routes is None else config.record_fraction,
    )


def build_local_client(config: EngineConfig) -> LocalClient:
    """An engine in this process. Raises as `build_runner` does."""
    runner = build_runner(config)
    try:
        return LocalClient(build_core(config, runner))
    except BaseException:
        runner.shutdown()
        raise


def model_info(checkpoint: Checkpoint, plan: MemoryPlan, tokenizer: Tokenizer | None) -> ModelInfo:
    spec = checkpoint.spec
    router = spec.moe(spec.moe_layers[0]).router
    return ModelInfo(
        name=checkpoint.folder.resolve().name,
        family=spec.family,
        fingerprint=checkpoint.fingerprint,
        dtype=plan.dtype,
        vocab_size=spec.vocab,
        max_model_len=plan.max_model_len,
        num_layers=len(spec.layers),
        moe_layers=spec.moe_layers,
        num_experts=router.num_experts,
        top_k=router.top_k,
        expert_bytes=plan.expert_bytes,
        dense_bytes=plan.dense_bytes,
        eos_token_ids=eos_token_ids(checkpoint.folder, spec.eos_token_ids, tokenizer),
        has_tokenizer=tokenizer is not None,
        lossy=plan.lossy,
        expert_tiers=plan.expert_tiers,
        emulated_link=plan.emulated_link,
    )


def _device(config: EngineConfig) -> torch.device:
    if config.device == "cuda":
        raise ConfigError("device", config.device, "auto or cpu: this version computes on the CPU")
    return torch.device("cpu")
