"""DraftConfig: which draft speaks ahead of the model, how far, and what its routing brings in."""

from dataclasses import dataclass
from typing import Literal, get_args

from smoe.core.errors import ConfigError

PrefetchTiming = Literal["adaptive", "none", "early", "late", "fixed"]
TIMINGS: tuple[PrefetchTiming, ...] = get_args(PrefetchTiming)
GROUP_SIZES = (32, 64, 128)
DEFAULT_GROUP_SIZE = 64
DEFAULT_PREFETCH: PrefetchTiming = "adaptive"
MAX_TOKENS = 64
SELF_DRAFT, LOOKUP_DRAFT = "int4", "ngram"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """`model` is `int4` (the model's own routed experts in 4 bits, the rest shared), `ngram` (continues the latest
    earlier occurrence of the last tokens; needs no memory) or the folder of a smaller model with the same tokenizer.

    `tokens` is how many it drafts before the model verifies them: a number, `auto` (what `smoe profile depth` found on
    this host for this model, else 8) or `online` (chosen as acceptance and costs are measured). `group_size` weights
    share a scale, with `int4`. `prefetch` says when drafted routing brings experts in: `adaptive` (phases and chunks
    of Specter), `early` (after the first drafted token), `late` (before verification), `fixed` (at 20 % and 60 % of the
    draft) or `none`. `auto_off` stops drafting while it does not pay. The draft's bytes count against expert_memory.
    `residual` reads experts from the disk as what the 4-bit copy does not know of them: the same bits, fewer bytes. Its
    file is made at the first use.
    `lossy` allows an expert policy that substitutes: then what verifies is not the model, and its output not the same.
    """

    model: str
    tokens: int | Literal["auto", "online"] = "auto"
    group_size: int = DEFAULT_GROUP_SIZE
    prefetch: PrefetchTiming = DEFAULT_PREFETCH
    auto_off: bool = True
    lossy: bool = False
    residual: bool = False

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("draft", self.model, f"{SELF_DRAFT}, {LOOKUP_DRAFT} or the folder of a model")
        if self.tokens not in ("auto", "online") and not (
            isinstance(self.tokens, int) and 1 <= self.tokens <= MAX_TOKENS
        ):
            raise ConfigError("draft_tokens", self.tokens, f"auto, online or an integer from 1 to {MAX_TOKENS}")
        if self.group_size not in GROUP_SIZES:
            raise ConfigError("draft_group_size", self.group_size, f"one of {', '.join(map(str, GROUP_SIZES))}")
        if self.prefetch not in TIMINGS:
            raise ConfigError("draft_prefetch", self.prefetch, f"one of {', '.join(TIMINGS)}")
        for name, default in (
            ("group_size", DEFAULT_GROUP_SIZE),
            ("prefetch", DEFAULT_PREFETCH),
            ("residual", False),
        ):
            if self.model != SELF_DRAFT and getattr(self, name) != default:
                raise ConfigError(f"draft_{name}", getattr(self, name), f"has no effect without draft {SELF_DRAFT}")
