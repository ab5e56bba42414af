"""A workload as it is to be offered: how many requests, of which lengths, when."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from smoe.core.errors import ConfigError
from smoe.workload.arrivals import ArrivalProcess
from smoe.workload.request_trace import Arrival, RequestTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`block_tokens` are those of one of the arrivals' blocks, a fraction where lengths were scaled by `scale`."""

    arrivals: tuple[Arrival, ...]
    scale: float = 1.0
    block_tokens: float = 1.0

    @property
    def rate(self) -> float | None:
        span = self.arrivals[-1].at_s
        return (len(self.arrivals) - 1) / span if span > 0 else None


def made_up(count: int, *, input_len: int, output_len: int, spread: float = 0.0, seed: int = 0) -> Plan:
    """Without times. Lengths uniform from (1 - spread) to (1 + spread) times the given ones, as vLLM's random data set
    has them. Raises ConfigError."""
    for field, value in (("num_requests", count), ("input_len", input_len), ("output_len", output_len)):
        if value < 1:
            raise ConfigError(field, value, "integer >= 1")
    if not 0 <= spread < 1:
        raise ConfigError("len_spread", spread, "0 up to, not including, 1")
    rng = np.random.default_rng([seed, 1])

    def lengths(middle: int) -> list[int]:
        low, high = max(1, int(middle * (1 - spread))), int(middle * (1 + spread))
        return [int(value) for value in rng.integers(low, high, count, endpoint=True)]

    both = zip(lengths(input_len), lengths(output_len), strict=True)
    return Plan(arrivals=tuple(Arrival(at_s=0.0, prompt_tokens=i, output_tokens=o) for i, o in both))


def traced(trace: RequestTrace, count: int) -> Plan:
    """The first `count` rows at their own times. Raises ConfigError."""
    if not 1 <= count <= len(trace.rows):
        raise ConfigError("num_requests", count, f"1 to the {len(trace.rows)} rows of {trace.name}")
    return Plan(arrivals=trace.rows[:count], block_tokens=float(trace.block_tokens))


def fitted(plan: Plan, max_model_len: int) -> Plan:
    """Every length by one factor, so that the longest request fits into the context; none below one token."""
    if max_model_len < 2:
        raise ConfigError("max_model_len", max_model_len, "at least 2, a prompt's token and an answer's")
    longest = max(a.prompt_tokens + a.output_tokens for a in plan.arrivals)
    factor = min(1.0, max_model_len / longest)

    def scaled(tokens: int) -> int:
        return max(1, int(tokens * factor))

    arrivals = tuple(
        replace(a, prompt_tokens=scaled(a.prompt_tokens), output_tokens=scaled(a.output_tokens)) for a in plan.arrivals
    )
    return Plan(arrivals=arrivals, scale=plan.scale * factor, block_tokens=plan.block_tokens * factor)


def timed(plan: Plan, process: ArrivalProcess, rate: float | None, seed: int) -> Plan:
    """The same requests at the process's times. Raises ConfigError."""
    own: Sequence[float] = [a.at_s for a in plan.arrivals] if any(a.at_s for a in plan.arrivals) else ()
    times = process.times_s(len(plan.arrivals), rate, seed, own)
    arrivals = tuple(replace(a, at_s=at) for a, at in zip(plan.arrivals, times, strict=True))
    return replace(plan, arrivals=arrivals)
