"""Latencies of one request from raw timestamps (seconds on one monotonic clock). Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """`chunks_s` are the arrival times of streamed chunks in order; `num_tokens` were generated in all of them."""

    sent_s: float
    chunks_s: tuple[float, ...]
    num_tokens: int


def ttft_s(times: RequestTimes) -> float | None:
    """Time to first token: from sending to the first streamed chunk. None when nothing came."""
    return times.chunks_s[0] - times.sent_s if times.chunks_s else None


def e2e_s(times: RequestTimes) -> float | None:
    """From sending to the last chunk."""
    return times.chunks_s[-1] - times.sent_s if times.chunks_s else None


def itl_s(times: RequestTimes) -> list[float]:
    """Inter-token latencies (time between tokens): the gaps between streamed chunks."""
    return [later - earlier for earlier, later in zip(times.chunks_s, times.chunks_s[1:], strict=False)]


def tpot_s(times: RequestTimes) -> float | None:
    """Time per output token after the first: (e2e - TTFT) / (n - 1). None below two tokens."""
    first, last = ttft_s(times), e2e_s(times)
    if first is None or last is None or times.num_tokens < 2:
        return None
    return (last - first) / (times.num_tokens - 1)


def percentile(values: Sequence[float], percent: float) -> float:
    """With linear interpolation between ranks, as numpy's default. `values` is not empty."""
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)
