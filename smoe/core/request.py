"""A request, and the pieces in which its answer comes back."""

from dataclasses import dataclass, field
from typing import Literal

from smoe.core.sampling import SamplingParams

FinishReason = Literal["stop", "length", "abort", "numeric_error", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to continue. `request_id` is chosen by the caller and unique among those in flight."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of a chosen token, and the most likely alternatives, best first.

    Probabilities are those of the model before temperature and truncation, as in vLLM's default.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one engine step adds to one request.

    `text` is what may be shown now (the start of a possible stop string and incomplete UTF-8 are held back);
    `token_ids` are the tokens sampled since the last delta. `held_back`: some text of tokens so far is not shown yet.
    `finish_reason`, `usage` come with the last one; `error` says why when the reason is `error` or `numeric_error`.
    `substituted_slots` and `substituted_mass` are what a lossy expert policy changed for this request so far: router
    choices computed by another expert, and their weights.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    held_back: bool = False
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None
    error: str | None = None
    substituted_slots: int = 0
    substituted_mass: float = 0.0
