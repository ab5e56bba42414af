"""From a configuration to a draft."""

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from smoe.core.config import EngineConfig
from smoe.core.draft import LOOKUP_DRAFT, SELF_DRAFT, DraftConfig
from smoe.core.errors import ConfigError
from smoe.engine.draft.depth import Depth, FixedDepth, OnlineDepth
from smoe.engine.draft.known_depth import most_draft_tokens
from smoe.engine.draft.lookup import NgramDraft
from smoe.engine.draft.loop import DraftLoop
from smoe.engine.draft.model_draft import ModelDraft
from smoe.engine.draft.pace import Pace
from smoe.engine.draft.protocol import Drafter
from smoe.engine.draft.self_draft import SelfDraft
from smoe.engine.draft.speculation import Speculation
from smoe.engine.states import RecurrentStates
from smoe.engine.tokenizer import Tokenizer, load_tokenizer
from smoe.models.bank import ExpertBank
from smoe.models.decoder import Decoder, Params
from smoe.models.kv import KVCache
from smoe.models.loading import Checkpoint, open_checkpoint
from smoe.models.quantised_file import load_int4
from smoe.models.residual_file import ResidualFile, load_residuals
from smoe.models.spec import DeltaSpec
from smoe.offload.bank import OffloadedBank
from smoe.offload.build import make_bank
from smoe.offload.draft_bank import make_int4_bank
from smoe.offload.window import make_window

log = logging.getLogger(__name__)

_CHUNK = 256  # tokens of one sequence that a draft model catches up on at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The loaded model that a draft speaks ahead of. `bank` is where its experts are, `residuals` what it reads them
    from, if it does."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer | None
    params: Params
    kv: KVCache
    bank: ExpertBank
    dtype: torch.dtype
    device: torch.device
    residuals: ResidualFile | None = None


def make_residuals(checkpoint: Checkpoint, draft: DraftConfig) -> ResidualFile:
    """With the 4-bit copy that they belong to. Both are made unless they are kept already."""
    return load_residuals(checkpoint, load_int4(checkpoint, draft.group_size), draft.group_size)


def make_speculation(draft: DraftConfig, target: Target) -> Speculation:
    """Loads the draft. Raises ConfigError for one of another vocabulary, and what loading raises."""
    if draft.model != LOOKUP_DRAFT and not isinstance(target.bank, OffloadedBank):
        log.info("draft %s: every expert is resident, so drafting will hardly pay", draft.model)
    depth = partial(_depth, draft.tokens == "online", most_draft_tokens(draft, target.checkpoint.fingerprint))
    experts = target.bank.stats if isinstance(target.bank, OffloadedBank) else None
    return Speculation(_drafter(draft, target), Pace(depth, auto_off=draft.auto_off), experts=experts)


def _depth(online: bool, most: int) -> Depth:
    return OnlineDepth(most) if online else FixedDepth(most)


def _drafter(draft: DraftConfig, target: Target) -> Drafter:
    if draft.model == LOOKUP_DRAFT:
        return NgramDraft()
    return _self_draft(draft, target) if draft.model == SELF_DRAFT else _model_draft(draft.model, target)


def _self_draft(draft: DraftConfig, target: Target) -> SelfDraft:
    spec = target.checkpoint.spec
    loaded = None if target.residuals is None else target.residuals.copy
    bank = make_int4_bank(target.checkpoint, draft.group_size, device=target.device, layers=loaded)
    window = None
    if isinstance(target.bank, OffloadedBank):
        experts = spec.moe(spec.moe_layers[0]).router.num_experts
        window = make_window(draft.prefetch, target.bank, spec.moe_layers, experts)
        bank.routed = window.routed
    decoder = Decoder(spec, target.params, bank, dtype=target.dtype)
    return SelfDraft(DraftLoop(decoder, target.kv, device=target.device, window=window), bank)


def _model_draft(folder: str, target: Target) -> ModelDraft:
    checkpoint, device, dtype = open_checkpoint(folder), target.device, target.dtype
    check_vocabulary(checkpoint, target.checkpoint, target.tokenizer)
    spec = checkpoint.spec
    bank = make_bank(checkpoint, EngineConfig(model=folder), dtype)
    try:
        params = checkpoint.params(dtype=dtype, device=device)
        num_rows, num_states = target.kv.num_rows, target.kv.num_states
        kv = KVCache(spec, num_rows=num_rows, num_states=num_states, dtype=dtype, device=device)
        delta = [i for i, layer in enumerate(spec.layers) if isinstance(layer.attention, DeltaSpec)]
        return ModelDraft(
            DraftLoop(Decoder(spec, params, bank, dtype=dtype), kv, device=device),
            bank,
            RecurrentStates(kv, delta),
            context=spec.max_positions,
            chunk=_CHUNK,
        )
    except BaseException:
        bank.close()
        raise


def check_vocabulary(draft: Checkpoint, model: Checkpoint, tokenizer: Tokenizer | None) -> None:
    """Raises ConfigError unless a token means the same to both."""
    folder = str(draft.folder)
    if draft.spec.vocab != model.spec.vocab:
        raise ConfigError(
            "draft", folder, f"a vocabulary of {model.spec.vocab} tokens as the model's: {draft.spec.vocab}"
        )
    own = load_tokenizer(Path(draft.folder))
    if tokenizer is None or own is None:
        return
    if (different := tokenizer.first_difference(own)) is not None:
        raise ConfigError("draft", folder, f"the model's tokenizer: token {different} is another")
