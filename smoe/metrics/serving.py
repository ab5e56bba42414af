"""What a client has seen of one request: when it went out, when each piece of its answer came."""

from dataclasses import dataclass

from smoe.metrics.latency import RequestTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """Times in seconds on one monotonic clock. `scheduled_s` is when the request was due, `sent_s` when it went out.

    `chunk_s` are the arrivals of the chunks that brought tokens, `chunk_tokens` how many each brought (as far as the
    server says, else 1). `output_tokens` are all that were generated. `error` says in one line why there is no whole
    answer; `status` is HTTP's, None where no response came.
    """

    request_id: str
    scheduled_s: float
    sent_s: float
    prompt_tokens: int
    output_tokens: int
    chunk_s: tuple[float, ...]
    chunk_tokens: tuple[int, ...]
    error: str | None = None
    status: int | None = None

    @property
    def failed(self) -> bool:
        """An answer without a single token is a failure too: it has no latency."""
        return self.error is not None or not self.chunk_s

    @property
    def late_s(self) -> float:
        """How long after it was due the request went out: the client's own delay, not the server's."""
        return self.sent_s - self.scheduled_s

    @property
    def times(self) -> RequestTimes:
        """For the formulas of `smoe.metrics.latency`."""
        return RequestTimes(sent_s=self.sent_s, chunks_s=self.chunk_s, num_tokens=self.output_tokens)
