"""ModelInfo: what others may know of a loaded model."""

import torch

from smoe.core.model_info import ModelInfo
from smoe.engine.plan import MemoryPlan
from smoe.engine.tokenizer import Tokenizer, eos_token_ids
from smoe.models.loading import Checkpoint


def model_info(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer | None,
    *,
    dtype: torch.dtype,
    max_model_len: int,
    expert_bytes: int,
    dense_bytes: int,
    lossy: bool = False,
    expert_tiers: tuple[str, ...] = (),
    emulated_link: str | None = None,
    draft_bytes: int = 0,
) -> ModelInfo:
    spec = checkpoint.spec
    router = spec.moe(spec.moe_layers[0]).router
    return ModelInfo(
        name=checkpoint.folder.resolve().name,
        family=spec.family,
        fingerprint=checkpoint.fingerprint,
        dtype=str(dtype).removeprefix("torch."),
        vocab_size=spec.vocab,
        max_model_len=max_model_len,
        num_layers=len(spec.layers),
        moe_layers=spec.moe_layers,
        num_experts=router.num_experts,
        top_k=router.top_k,
        expert_bytes=expert_bytes,
        dense_bytes=dense_bytes,
        eos_token_ids=eos_token_ids(checkpoint.folder, spec.eos_token_ids, tokenizer),
        has_tokenizer=tokenizer is not None,
        lossy=lossy,
        expert_tiers=expert_tiers,
        emulated_link=emulated_link,
        draft_bytes=draft_bytes,
    )


def planned_model_info(checkpoint: Checkpoint, plan: MemoryPlan, tokenizer: Tokenizer | None) -> ModelInfo:
    """Of a model on one device, as its plan has it."""
    return model_info(
        checkpoint,
        tokenizer,
        dtype=getattr(torch, plan.dtype),
        max_model_len=plan.max_model_len,
        expert_bytes=plan.expert_bytes,
        dense_bytes=plan.dense_bytes,
        lossy=plan.lossy,
        expert_tiers=plan.expert_tiers,
        emulated_link=plan.emulated_link,
        draft_bytes=plan.draft_bytes,
    )
