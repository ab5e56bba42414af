"""Service level objectives: limits on latencies of each request, as `ttft:500 tpot:50 tbt_p90:100` (milliseconds).

And the figures of many requests, under the names that vLLM's serving benchmark gives them.
"""

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from smoe.core.errors import ConfigError
from smoe.metrics.latency import RequestTimes, e2e_s, itl_s, percentile, tpot_s, ttft_s
from smoe.metrics.serving import RequestRecord

NAMES = "ttft, tpot, e2el, tbt_p90 (or another percentile of the gaps between chunks)"
PERCENTILES = (50, 90, 95, 99)
_WHOLE: dict[str, Callable[[RequestTimes], float | None]] = {"ttft": ttft_s, "tpot": tpot_s, "e2el": e2e_s}
_GAPS = re.compile(r"tbt_p(100|[1-9]?\d)")


@dataclass(frozen=True, slots=True)
class Slo:
    """`limits_ms` by name; without limits every request with an answer meets it."""

    limits_ms: tuple[tuple[str, float], ...] = ()

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """From `name:milliseconds` each. Raises ConfigError."""
        limits: dict[str, float] = {}
        for text in texts:
            name, _, value = text.partition(":")
            if name not in _WHOLE and not _GAPS.fullmatch(name):
                raise ConfigError("goodput", text, f"NAME:MILLISECONDS, NAME of {NAMES}")
            if name in limits:
                raise ConfigError("goodput", text, f"{name} once")
            limits[name] = _milliseconds(text, value)
        return cls(tuple(limits.items()))

    def meets(self, record: RequestRecord) -> bool:
        """Within every limit. A failed request never is; what a short answer does not have (time per further token of
        one token, gaps of one chunk) exceeds nothing."""
        if record.failed:
            return False
        values = ((latency_ms(name, record), limit) for name, limit in self.limits_ms)
        return all(value is None or value <= limit for value, limit in values)

    def __str__(self) -> str:
        return " ".join(f"{name}:{limit:g}" for name, limit in self.limits_ms) or "any answer"


def latency_ms(name: str, record: RequestRecord) -> float | None:
    """A latency of one request by its name in an Slo; None where the answer is too short to have it."""
    times = record.times
    if name in _WHOLE:
        value = _WHOLE[name](times)
        return None if value is None else value * 1000
    gaps = itl_s(times)
    return percentile(gaps, float(name.removeprefix("tbt_p"))) * 1000 if gaps else None


def _milliseconds(text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not 0 < number < float("inf"):
        raise ConfigError("goodput", text, "NAME:MILLISECONDS, a number above 0")
    return number


def summarise(records: Sequence[RequestRecord], duration_s: float, slo: Slo) -> dict[str, Any]:
    """Rates are per second of `duration_s`, latencies in milliseconds over completed requests, None where none has
    one. Failed requests count as `failed` and against `slo_attainment`, the share of all requests that met the SLO;
    tokens of failed ones count nowhere. `late_ms` are the client's own delays in sending, of every request."""
    done = [record for record in records if not record.failed]
    met = sum(slo.meets(record) for record in records)
    tokens_in = sum(record.prompt_tokens for record in done)
    tokens_out = sum(record.output_tokens for record in done)
    return {
        "duration": duration_s,
        "completed": len(done),
        "failed": len(records) - len(done),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": len(done) / duration_s,
        "request_goodput": met / duration_s,
        "slo": str(slo),
        "slo_attainment": met / len(records) if records else None,
        "output_throughput": tokens_out / duration_s,
        "total_token_throughput": (tokens_in + tokens_out) / duration_s,
        **_latency("ttft", (latency_ms("ttft", record) for record in done)),
        **_latency("tpot", (latency_ms("tpot", record) for record in done)),
        **_latency("itl", (gap * 1000 for record in done for gap in itl_s(record.times))),
        **_latency("tbt_p90", (latency_ms("tbt_p90", record) for record in done)),
        **_latency("e2el", (latency_ms("e2el", record) for record in done)),
        **_latency("late", (record.late_s * 1000 for record in records)),
    }


def _latency(name: str, values: Iterable[float | None]) -> dict[str, float | None]:
    have = [value for value in values if value is not None]
    names = ("mean", "median", "std", *(f"p{percent}" for percent in PERCENTILES), "max")
    if not have:
        return {f"{of}_{name}_ms": None for of in names}
    figures = (
        statistics.fmean(have),
        statistics.median(have),
        statistics.pstdev(have),
        *(percentile(have, percent) for percent in PERCENTILES),
        max(have),
    )
    return {f"{of}_{name}_ms": figure for of, figure in zip(names, figures, strict=True)}
