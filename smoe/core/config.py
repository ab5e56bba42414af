"""EngineConfig: everything that decides how an engine runs, checked when it is made."""

from dataclasses import dataclass, field
from typing import Literal

from smoe.core.draft import DEFAULT_PREFETCH, DraftConfig
from smoe.core.errors import ConfigError
from smoe.core.expert_tier import DEFAULT_TIER, ExpertTier
from smoe.core.parallel import ParallelConfig

DType = Literal["auto", "float32", "bfloat16"]
DEFAULT_POLICY = "auto"
DTYPES = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """`model` is a folder or `builtin`. Limits are in tokens; None takes the model's own or a size that fits.
    `max_num_seqs` and `max_num_batched_tokens` are for all data-parallel groups of `parallel` together.

    `expert_memory` is a string that ExpertMemory.parse reads; `all` keeps every expert resident, and then another
    `expert_policy` (read by smoe.offload.policies.spec) than `auto` is refused, having no effect; `auto` is evict=lru,
    beside a self-draft what suits windows (smoe.offload.build.live_policy). Of a budget, and of the tier's host memory,
    each of several devices has the share that its experts are of all that devices hold, copies included; a fraction is
    of the experts on each, and `auto` takes what is free on each.
    `expert_memory_max`, in the same words, is how far `resize_experts` can go while the engine runs: addresses are
    reserved and memory is planned for it, but taken as it is used. `expert_tier`, which ExpertTier.parse reads, says
    where experts are that are not resident. `expert_link` ("2GB/s+1ms") slows the last link into the slots to a
    declared one, for studies: from the disk, or from host memory where the tier has some.
    `record_routes` is a file for a route trace, recorded from `record_fraction` of the requests; `record_logits` adds
    the router logits to it, `record_lookahead` those of each next layer's router. With `record_part_tokens` it is a
    folder instead, and gets a trace file each time that requests of about so many tokens have ended.
    `draft` is what speaks ahead of the model, which then checks several tokens at once; its own bytes are taken from
    those that `expert_memory` gives.
    """

    model: str = "builtin"
    dtype: DType = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    expert_memory: str = "all"
    expert_memory_max: str | None = None
    expert_policy: str = DEFAULT_POLICY
    expert_tier: str = DEFAULT_TIER
    expert_link: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 2048
    threads: int | None = None
    seed: int = 0
    record_routes: str | None = None
    record_fraction: float = 1.0
    record_logits: bool = False
    record_lookahead: bool = False
    record_part_tokens: int | None = None
    draft: DraftConfig | None = None
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    def __post_init__(self) -> None:
        from smoe.core.expert_memory import ExpertMemory

        if self.dtype not in DTYPES:
            raise ConfigError("dtype", self.dtype, f"one of {', '.join(DTYPES)}")
        memory = ExpertMemory.parse(self.expert_memory)
        if memory.kind == "all" and self.expert_policy != DEFAULT_POLICY:
            limit = "only with expert_memory below `all`: with every expert resident it has no effect"
            raise ConfigError("expert_policy", self.expert_policy, limit)
        if self.expert_memory_max is not None:
            most = ExpertMemory.parse(self.expert_memory_max, "expert_memory_max")
            if memory.kind == "all":
                limit = "only with expert_memory below `all`: there is nothing to resize"
                raise ConfigError("expert_memory_max", self.expert_memory_max, limit)
            if most.kind == "auto":
                raise ConfigError("expert_memory_max", self.expert_memory_max, "a size, not what is free now")
        ExpertTier.parse(self.expert_tier)
        if memory.kind == "all" and self.expert_tier != DEFAULT_TIER:
            limit = "only with expert_memory below `all`: with every expert resident it has no effect"
            raise ConfigError("expert_tier", self.expert_tier, limit)
        if self.expert_link is not None:
            from smoe.core.link_model import LinkModel

            LinkModel.parse(self.expert_link, "expert_link")
            if memory.kind == "all":
                limit = "only with expert_memory below `all`: nothing is moved otherwise"
                raise ConfigError("expert_link", self.expert_link, limit)
        wrong = ("sockets", "gloo") if self.device == "cuda" else ("nccl",)
        if self.parallel.backend in wrong:
            raise ConfigError("backend", self.parallel.backend, f"auto, or one that device {self.device} has")
        if self.draft is not None:
            self._check_draft(self.draft, all_resident=memory.kind == "all")
        for name, low in (("max_num_seqs", 1), ("max_num_batched_tokens", 1)):
            if getattr(self, name) < low:
                raise ConfigError(name, getattr(self, name), f"integer >= {low}")
        for name in ("max_model_len", "threads", "record_part_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(name, value, "integer >= 1")
        if not 0.0 < self.record_fraction <= 1.0:
            raise ConfigError("record_fraction", self.record_fraction, "above 0 up to 1")
        for name in ("record_logits", "record_lookahead", "record_part_tokens"):
            if getattr(self, name) and self.record_routes is None:
                raise ConfigError(name, getattr(self, name), "has no effect without record_routes")

    def _check_draft(self, draft: DraftConfig, *, all_resident: bool) -> None:
        if self.parallel.size > 1:
            raise ConfigError("draft", draft.model, "only on one device")
        if all_resident and draft.prefetch != DEFAULT_PREFETCH:
            limit = "only with expert_memory below `all`: with every expert resident it has no effect"
            raise ConfigError("draft_prefetch", draft.prefetch, limit)
        if draft.residual and all_resident:
            limit = "only with expert_memory below `all`: nothing is read from the disk otherwise"
            raise ConfigError("draft_residual", True, limit)
        if draft.residual and self.expert_tier != DEFAULT_TIER:
            raise ConfigError("draft_residual", True, f"only with expert_tier {DEFAULT_TIER}, not {self.expert_tier}")
