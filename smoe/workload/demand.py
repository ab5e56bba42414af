"""What is asked of a server, but for the rate: how many requests, whose lengths, arriving how."""

from dataclasses import dataclass, field

from smoe.workload.arrivals import ArrivalProcess
from smoe.workload.plan import Plan, fitted, made_up, timed, traced
from smoe.workload.request_file import open_requests
from smoe.workload.request_trace import RequestTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Lengths are those of the request trace `trace`, or made up around `input_len` and `output_len`. Raises
    ConfigError or TraceError."""

    num_requests: int = 100
    trace: str | None = None
    skip_bad_rows: bool = False
    input_len: int = 128
    output_len: int = 32
    len_spread: float = 0.0
    process: ArrivalProcess = field(default_factory=lambda: ArrivalProcess("poisson"))
    max_model_len: int | None = None
    seed: int = 0

    def open(self) -> RequestTrace | None:
        return None if self.trace is None else open_requests(self.trace, skip_bad_rows=self.skip_bad_rows)

    def requests(self, repeat: int = 0) -> Plan:
        """Without new times: which requests, scaled to `max_model_len`. Of a trace they are the same in all repeats."""
        trace = self.open()
        if trace is not None:
            plan = traced(trace, self.num_requests)
        else:
            plan = made_up(
                self.num_requests,
                input_len=self.input_len,
                output_len=self.output_len,
                spread=self.len_spread,
                seed=self.seed + repeat,
            )
        return plan if self.max_model_len is None else fitted(plan, self.max_model_len)

    def plan(self, rate: float | None, repeat: int = 0) -> Plan:
        """At `rate` requests a second; None is a trace's own, with arrivals by the trace."""
        return timed(self.requests(repeat), self.process, rate, self.seed + repeat)

    def described(self) -> str:
        """What is asked, whose lengths, how they were scaled and which rows were left out, on one line."""
        trace, scale = self.open(), self.requests().scale
        source = "made-up lengths" if trace is None else trace.name
        own = "" if trace is None or trace.rate is None else f" (its own rate {trace.rate:.3g}/s)"
        scaled = "" if scale == 1 else f", lengths scaled by {scale:.4g} to {self.max_model_len} tokens"
        skipped = f", {trace.skipped} malformed rows skipped" if trace is not None and trace.skipped else ""
        return f"{self.num_requests} requests of {source}{own}{scaled}{skipped}"
