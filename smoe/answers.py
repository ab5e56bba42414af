"""One finished answer, put together from its deltas."""

from collections.abc import Iterable
from dataclasses import dataclass

from smoe.core.request import Delta, FinishReason, TokenLogprob, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """`text` is None when the model folder has no tokenizer; `logprobs` when none were asked for.

    `first_token_s` and `last_token_s` are `time.perf_counter` values of arrival, None when there was no token.
    `error` says why when `finish_reason` is `error` or `numeric_error`. With a lossy expert policy (ModelInfo.lossy)
    `substituted_slots` router choices were computed by another expert, `substituted_mass` in router weight (a whole row
    of one layer weighs 1).
    """

    prompt_token_ids: tuple[int, ...]
    text: str | None
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    usage: Usage
    error: str | None
    first_token_s: float | None
    last_token_s: float | None
    substituted_slots: int = 0
    substituted_mass: float = 0.0


def complete(
    prompt_token_ids: tuple[int, ...], arrivals: Iterable[tuple[float, Delta]], *, text: bool, logprobs: bool
) -> Completion:
    """Reads arrivals to the end; the last must have a finish reason."""
    seen = list(arrivals)
    deltas = [delta for _, delta in seen]
    times = [arrived for arrived, delta in seen if delta.token_ids]
    last = deltas[-1]
    assert last.finish_reason is not None, "the last delta of a request says how it ended"
    assert last.usage is not None, "the last delta of a request counts its tokens"
    return Completion(
        prompt_token_ids=prompt_token_ids,
        text="".join(delta.text for delta in deltas) if text else None,
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs) if logprobs else None,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        usage=last.usage,
        error=last.error,
        first_token_s=times[0] if times else None,
        last_token_s=times[-1] if times else None,
        substituted_slots=last.substituted_slots,
        substituted_mass=last.substituted_mass,
    )
