"""What the clients of an engine see of their requests: observed as deltas arrive, kept as histograms."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from smoe.core.request import Delta, FinishReason
from smoe.metrics.histogram import Histogram, steps_1_2_5

# vLLM's buckets (vllm/v1/metrics/loggers.py), in seconds, with finer ones below them for models that are small.
_TTFT_S = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_S = (
    *(0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKENS = steps_1_2_5(200_000)
_WHOLE: tuple[FinishReason, ...] = ("stop", "length")


@dataclass(slots=True)
class _Open:
    prompt_tokens: int
    begun_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    tokens: int = 0


class RequestMeter:
    """Not thread-safe. Times are the caller's, seconds of one clock.

    TTFT is observed with the first delta that has a token, inter-token latency with every later one: the gap between
    two deliveries, whatever number of tokens comes with one. The rest is observed at the end of a request that ended
    as it should (`stop`, `length`); others are counted, by reason, and have no latency. Time per output token is
    (end - first) / (tokens - 1), of requests with two tokens and more.
    """

    def __init__(self) -> None:
        self.ttft_s, self.itl_s, self.tpot_s = Histogram(_TTFT_S), Histogram(_TOKEN_S), Histogram(_TOKEN_S)
        self.e2e_s = Histogram(_REQUEST_S)
        self.prompt_tokens, self.output_tokens = Histogram(_TOKENS), Histogram(_TOKENS)
        self._ended: dict[FinishReason, int] = dict.fromkeys(get_args(FinishReason), 0)
        self._open: dict[str, _Open] = {}

    @property
    def ended(self) -> Mapping[FinishReason, int]:
        """Requests by how they ended."""
        return self._ended

    @property
    def num_open(self) -> int:
        return len(self._open)

    def begin(self, request_id: str, prompt_tokens: int, now_s: float) -> None:
        self._open[request_id] = _Open(prompt_tokens, now_s)

    def refuse(self, request_id: str) -> None:
        """It never ran."""
        self._open.pop(request_id, None)

    def abort(self, request_id: str) -> None:
        """Its client has left. Nothing if it has ended."""
        if self._open.pop(request_id, None) is not None:
            self._ended["abort"] += 1

    def note(self, delta: Delta, now_s: float) -> None:
        """Deltas of a request that is not open are ignored."""
        request = self._open.get(delta.request_id)
        if request is None:
            return
        if delta.token_ids:
            if request.tokens:
                self.itl_s.observe(now_s - request.last_s)
            else:
                request.first_s = now_s
                self.ttft_s.observe(now_s - request.begun_s)
            request.last_s = now_s
            request.tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            del self._open[delta.request_id]
            self._ended[delta.finish_reason] += 1
            if delta.finish_reason in _WHOLE:
                self._end(request, now_s)

    def reset(self) -> None:
        """Requests that are open stay so."""
        for histogram in (self.ttft_s, self.itl_s, self.tpot_s, self.e2e_s, self.prompt_tokens, self.output_tokens):
            histogram.reset()
        self._ended = dict.fromkeys(self._ended, 0)

    def _end(self, request: _Open, now_s: float) -> None:
        self.e2e_s.observe(now_s - request.begun_s)
        self.prompt_tokens.observe(request.prompt_tokens)
        self.output_tokens.observe(request.tokens)
        if request.tokens > 1:
            self.tpot_s.observe((request.last_s - request.first_s) / (request.tokens - 1))
