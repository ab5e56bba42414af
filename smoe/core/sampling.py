"""How the next token is chosen: sampling parameters of one request."""

import math
from dataclasses import dataclass

from smoe.core.errors import RequestError

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Names and meanings as in vLLM; `temperature=0` is greedy.

    `max_tokens=None` means what is left of the context after the prompt. `stop` strings end the text before
    their first occurrence; `stop_token_ids` end it like EOS. `seed` makes one request reproducible alone.
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _require(self.max_tokens is None or _is_int(self.max_tokens, 1), "max_tokens", self.max_tokens, "integer >= 1")
        _require(_is_number(self.temperature, 0.0, 100.0), "temperature", self.temperature, "number, 0 to 100")
        top_p_ok = _is_number(self.top_p, 0.0, 1.0) and self.top_p > 0
        _require(top_p_ok, "top_p", self.top_p, "number, above 0 up to 1")
        _require(_is_int(self.top_k, 0), "top_k", self.top_k, "integer >= 0; 0 keeps all")
        _require(_is_number(self.min_p, 0.0, 1.0), "min_p", self.min_p, "number, 0 to 1")
        seed_ok = self.seed is None or (_is_int(self.seed, 0) and self.seed < 2**63)
        _require(seed_ok, "seed", self.seed, "integer, 0 to 2^63-1")
        _require(all(isinstance(s, str) and s for s in self.stop), "stop", self.stop, "non-empty strings")
        ids_ok = all(_is_int(i, 0) for i in self.stop_token_ids)
        _require(ids_ok, "stop_token_ids", self.stop_token_ids, "integers >= 0")
        logprobs_ok = self.logprobs is None or (_is_int(self.logprobs, 0) and self.logprobs <= MAX_LOGPROBS)
        _require(logprobs_ok, "logprobs", self.logprobs, f"integer, 0 to {MAX_LOGPROBS}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def _require(ok: bool, field: str, value: object, limit: str) -> None:
    if not ok:
        raise RequestError(field, value, limit)


def _is_int(value: object, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _is_number(value: object, low: float, high: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and low <= value <= high
