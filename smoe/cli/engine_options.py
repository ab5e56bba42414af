"""Options of an engine, said once: a verb names those that it takes, and `resolve` reads them from its context."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from smoe.cli import options
from smoe.core.expert_tier import DEFAULT_TIER

T = TypeVar("T")

EXPERTS = ("expert_memory", "expert_policy", "expert_tier")
DRAFT = (
    *("draft", "draft_tokens", "draft_group_size", "draft_prefetch", "draft_lossy", "draft_residual"),
    "no_draft_auto_off",
)
PARALLEL = (
    *("tensor_parallel_size", "data_parallel_size", "data_parallel_routing", "schedule", "placement"),
    *("capacity_factor", "no_dedup"),
)
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "model": (options.Model, "builtin"),
    "max_num_seqs": (options.MaxNumSeqs, None),
    "max_num_batched_tokens": (options.MaxNumBatchedTokens, None),
    "dtype": (options.DType, "auto"),
    "expert_memory": (options.ExpertMemoryOption, "all"),
    "expert_memory_max": (options.ExpertMemoryMax, None),
    "expert_policy": (options.ExpertPolicy, None),
    "expert_tier": (options.ExpertTier, DEFAULT_TIER),
    "expert_link": (options.ExpertLink, None),
    "draft": (options.Draft, None),
    "draft_tokens": (options.DraftTokens, None),
    "draft_group_size": (options.DraftGroupSize, None),
    "draft_prefetch": (options.DraftPrefetch, None),
    "draft_lossy": (options.DraftLossy, False),
    "draft_residual": (options.DraftResidual, False),
    "no_draft_auto_off": (options.NoDraftAutoOff, False),
    "max_model_len": (options.MaxModelLen, None),
    "threads": (options.Threads, None),
    "tensor_parallel_size": (options.TensorParallelSize, None),
    "data_parallel_size": (options.DataParallelSize, None),
    "data_parallel_routing": (options.DataParallelRouting, None),
    "schedule": (options.Schedule, None),
    "placement": (options.PlacementFolder, None),
    "capacity_factor": (options.CapacityFactor, None),
    "no_dedup": (options.NoDedup, False),
}


def takes(*names: str, before: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """The verb has the options `names` too, in --help before its own parameter `before`. It is called without them."""

    def decorate(verb: Callable[..., T]) -> Callable[..., T]:
        @wraps(verb)
        def call(**values: Any) -> T:
            return verb(**{name: value for name, value in values.items() if name not in names})

        shared = [_parameter(name) for name in names]
        own = list(inspect.signature(verb).parameters.values())
        place = [each.name for each in own].index(before)
        call.__signature__ = inspect.Signature([*own[:place], *shared, *own[place:]])  # type: ignore[attr-defined]
        return call

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    annotation, default = _OPTIONS[name]
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)
