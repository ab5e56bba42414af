"""What an engine will hold in memory, worked out from headers before any weight is read."""

from dataclasses import dataclass

import psutil
import torch

from smoe.core.config import EngineConfig
from smoe.core.draft import LOOKUP_DRAFT, SELF_DRAFT, DraftConfig
from smoe.core.errors import CapacityError, ConfigError
from smoe.core.expert_memory import ExpertMemory
from smoe.engine.draft.known_depth import most_draft_tokens
from smoe.engine.memory import free_bytes
from smoe.models.kv import bytes_per_row
from smoe.models.loading import Checkpoint, open_checkpoint
from smoe.models.spec import DecoderSpec, DeltaSpec
from smoe.offload.build import live_policy, most_slots, planned_tiers
from smoe.offload.draft_memory import draft_nbytes, slots_beside_draft
from smoe.offload.readahead import known_readahead

KV_SHARE = 0.25  # of the memory left beside the dense weights, when `auto` divides it between KV and experts
_LIBRARY_BYTES = 32 * 2**20  # tokenizer, kernels and allocator slack: 8 to 16 MiB seen with the built-in model


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """All figures in bytes unless named otherwise. `expert_policy` is in full; `lossy` says it changes the outputs.
    `residual_group_size` is that of the 4-bit copy whose residuals are read instead of experts, None where none are.

    `expert_slots` and `host_expert_slots` count all layers; `auto_bytes` is what `expert_memory=auto` gives to experts.
    `experts_resident_bytes` is that of `expert_memory_max`, where it is given.
    `expert_tiers` are those that experts come from, the farthest first; `disk_reads` says in how many threads and
    pieces they are read, as far as that has been measured, None without a disk tier. `kv_bytes` are touched only as far
    as sequences fill them. `workspace_bytes` is an estimate of activations in the largest step; `process_bytes` is what
    this process holds before loading. `draft_bytes` are the draft's weights: of a bounded `expert_memory` they are a
    part, so that `expert_slots` are those of the rest. `kv_row_bytes` and `state_bytes` are the model's and, of a draft
    model that has rows and states of its own, `draft_row_bytes` and `draft_state_bytes` come on top.
    """

    dtype: str
    max_model_len: int
    num_moe_layers: int
    num_experts: int
    dense_bytes: int
    expert_bytes: int
    experts_total_bytes: int
    slot_bytes: int
    expert_slots: int
    experts_resident_bytes: int
    auto_bytes: int
    expert_tiers: tuple[str, ...]
    host_expert_slots: int
    host_experts_bytes: int
    all_resident: bool
    kv_rows: int
    kv_row_bytes: int
    draft_row_bytes: int
    kv_bytes: int
    state_bytes: int
    draft_state_bytes: int
    workspace_bytes: int
    process_bytes: int
    free_bytes: int
    disk_reads: str | None
    expert_policy: str
    lossy: bool
    emulated_link: str | None
    draft_bytes: int
    residual_group_size: int | None

    @property
    def slots_per_layer(self) -> float:
        return self.expert_slots / max(1, self.num_moe_layers)

    @property
    def new_bytes(self) -> int:
        """What loading and running will add to this process, at most."""
        experts = self.experts_resident_bytes + self.host_experts_bytes
        weights, states = self.dense_bytes + experts + self.draft_bytes, self.state_bytes + self.draft_state_bytes
        return weights + states + self.workspace_bytes + self.kv_bytes

    @property
    def predicted_peak_rss_bytes(self) -> int:
        return self.process_bytes + _LIBRARY_BYTES + self.new_bytes


def plan_memory(checkpoint: Checkpoint, config: EngineConfig) -> MemoryPlan:
    """Raises ConfigError for a budget below one expert a layer or above the memory free now, CapacityError when
    not even one sequence fits beside the weights."""
    spec, dtype, free = checkpoint.spec, compute_dtype(checkpoint.spec, config), free_bytes()
    max_model_len = context_length(spec, config)
    budget = ExpertMemory.parse(config.expert_memory)
    tiers = planned_tiers(checkpoint, config, dtype)
    shelf, policy = tiers.above, live_policy(config, tiers.tiers)
    if config.draft is not None:
        _check_lossy(config.draft, config.expert_policy, policy.lossy)
    layers, first = spec.moe_layers, spec.moe(spec.moe_layers[0])
    sizes = {layer: checkpoint.expert_source(layer, 0).assembled_nbytes(dtype) for layer in layers}
    total = sum(size * spec.moe(layer).router.num_experts for layer, size in sizes.items())
    dense = checkpoint.params_nbytes(dtype=dtype)
    draft_tokens = 0 if config.draft is None else most_draft_tokens(config.draft, checkpoint.fingerprint)
    states, workspace = state_bytes(spec) * config.max_num_seqs, _workspace_bytes(spec, config, draft_tokens)
    draft_bytes, own = draft_nbytes(config.draft, checkpoint, dtype), _own_cache(config.draft)
    draft_row_bytes = 0 if own is None else bytes_per_row(own, dtype)
    draft_states = 0 if own is None else state_bytes(own) * config.max_num_seqs
    left = free - dense - states - workspace - draft_bytes - draft_states
    if tiers.host_bytes > max(0, left):
        limit = f"{tiers.host_bytes} bytes of host memory, but {max(0, left)} bytes are free beside the other weights"
        raise ConfigError("expert_tier", config.expert_tier, limit)
    left -= tiers.host_bytes
    row_bytes = bytes_per_row(spec, dtype)
    wanted_rows = config.max_num_seqs * max_model_len
    rows_bytes = row_bytes + draft_row_bytes
    kv_reserve = min(wanted_rows * rows_bytes, int(max(0, left) * KV_SHARE))
    auto_bytes = max(0, left - kv_reserve)
    slots = slots_beside_draft(shelf, budget, draft_bytes, free_bytes=auto_bytes)
    all_resident = budget.kind == "all" or (budget.kind == "auto" and slots == shelf.num_experts)
    if all_resident and tiers.residual:
        limit = "only where experts are read from the disk: all of them fit in memory"
        raise ConfigError("draft_residual", True, limit)
    most = most_slots(shelf, config, slots, draft_bytes) if not all_resident else slots
    resident = total if all_resident else most * shelf.slot_bytes + shelf.staging_bytes
    if resident > left:
        limit = f"{resident} bytes of experts, but {max(0, left)} bytes are free beside the other weights; try auto"
        raise ConfigError("expert_memory", config.expert_memory, limit)
    rows = min(wanted_rows, (left - resident) // rows_bytes) if rows_bytes else wanted_rows
    if rows < 2:
        raise CapacityError(f"KV memory: {left - resident} bytes are left for rows of {rows_bytes} bytes")
    return MemoryPlan(
        dtype=str(dtype).removeprefix("torch."),
        max_model_len=max_model_len,
        num_moe_layers=len(layers),
        num_experts=first.router.num_experts,
        dense_bytes=dense,
        expert_bytes=sizes[layers[0]],
        experts_total_bytes=total,
        slot_bytes=shelf.slot_bytes,
        expert_slots=slots,
        experts_resident_bytes=resident,
        auto_bytes=auto_bytes,
        expert_tiers=() if all_resident else tiers.tiers,
        host_expert_slots=0 if all_resident else tiers.host_slots,
        host_experts_bytes=0 if all_resident else tiers.host_bytes,
        all_resident=all_resident,
        kv_rows=rows,
        kv_row_bytes=row_bytes,
        draft_row_bytes=draft_row_bytes,
        kv_bytes=rows * rows_bytes,
        state_bytes=states,
        draft_state_bytes=draft_states,
        workspace_bytes=workspace,
        process_bytes=int(psutil.Process().memory_info().rss),
        free_bytes=free,
        disk_reads=_disk_reads(checkpoint) if "disk" in tiers.tiers and not all_resident else None,
        expert_policy=str(policy),
        lossy=policy.lossy and not all_resident,
        emulated_link=config.expert_link,
        draft_bytes=draft_bytes,
        residual_group_size=config.draft.group_size if config.draft is not None and tiers.residual else None,
    )


def compute_dtype(spec: DecoderSpec, config: EngineConfig) -> torch.dtype:
    """The dtype of the arithmetic; `auto` is the checkpoint's own, and fp32 for fp16, which has no kernels."""
    if config.dtype == "auto":
        return torch.bfloat16 if spec.checkpoint_dtype == "bfloat16" else torch.float32
    return torch.float32 if config.dtype == "float32" else torch.bfloat16


def context_length(spec: DecoderSpec, config: EngineConfig) -> int:
    """Raises ConfigError when more is asked for than the model has positions for."""
    if config.max_model_len is None:
        return spec.max_positions
    if not 2 <= config.max_model_len <= spec.max_positions:
        raise ConfigError("max_model_len", config.max_model_len, f"2 to the model's {spec.max_positions} positions")
    return config.max_model_len


def _disk_reads(checkpoint: Checkpoint) -> str | None:
    layer = checkpoint.spec.moe_layers[0]
    part = next(iter(checkpoint.expert_source(layer, 0).parts.values()))
    try:
        return str(known_readahead(part.path))
    except OSError:
        return None  # the file has gone since its header was read: opening it will say so


def state_bytes(spec: DecoderSpec) -> int:
    """Recurrent state of one sequence, all of it fp32."""
    total = 0
    for layer in spec.layers:
        delta = layer.attention
        if isinstance(delta, DeltaSpec):
            channels = 2 * delta.num_key_heads * delta.key_head_dim + delta.num_value_heads * delta.value_head_dim
            total += 4 * channels * (delta.conv_kernel - 1)
            total += 4 * delta.num_value_heads * delta.key_head_dim * delta.value_head_dim
    return total


def _own_cache(draft: DraftConfig | None) -> DecoderSpec | None:
    """The draft that keeps KV rows and states of its own; the others write into the model's."""
    return None if draft is None or draft.model in (LOOKUP_DRAFT, SELF_DRAFT) else open_checkpoint(draft.model).spec


def _check_lossy(draft: DraftConfig, policy: str, lossy: bool) -> None:
    if lossy and not draft.lossy:
        limit = "one that changes no output, or with draft_lossy: else what verifies a draft is not the model"
        raise ConfigError("expert_policy", policy, limit)
    if draft.lossy and not lossy:
        raise ConfigError("draft_lossy", True, "has no effect: this expert_policy changes no output")


def _workspace_bytes(spec: DecoderSpec, config: EngineConfig, draft_tokens: int) -> int:
    """fp32 values alive at once: residual stream and one layer's expert outputs a row, logits a sequence (also as
    fp64 while sampling), and for each token that may be drafted those of the model and what it was drawn from."""
    top_k = max(spec.moe(layer).router.top_k for layer in spec.moe_layers)
    rows = config.max_num_batched_tokens * spec.hidden * (8 + top_k)
    return 4 * (rows + (8 + 2 * draft_tokens) * config.max_num_seqs * spec.vocab)
