"""What a server measures, as Prometheus metrics: names as vLLM has them where it has them, under `smoe:`.

Nothing is counted here: every value is read when it is asked for. Labels have few values, whatever is asked of the
server: outcomes, links, decoder layers, devices, HTTP status codes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from smoe.core.stats import EngineStats
from smoe.metrics.engine_series import COUNTERS, GAUGES, LABELLED
from smoe.metrics.histogram import Histogram
from smoe.metrics.request_meter import RequestMeter

PREFIX = "smoe:"
PHASES = ("loading", "running", "restarting", "draining", "failed", "closed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """`engine` is None while there is none, or none that answers; `since_s`, Unix time, is when counts began.
    `moe_layers` are those that `engine.routing.loads` is of. `replica` tells servers at one address apart."""

    model: str
    phase: str
    since_s: float
    responses: Mapping[int, int]
    requests: RequestMeter
    engine: EngineStats | None
    moe_layers: Sequence[int] = ()
    replica: str | None = None


def families(state: ServerState) -> Iterator[Metric]:
    """Where there is a `replica`, it is a label of every sample."""
    for family in _families(state):
        if state.replica is not None:
            family.samples = [s._replace(labels={**s.labels, "replica": state.replica}) for s in family.samples]
        yield family


def _families(state: ServerState) -> Iterator[Metric]:
    yield _gauge("model_info", "The model served; always 1.", "model", {state.model: 1})
    yield _gauge(
        "engine_phase", "1 for the phase that the engine is in.", "phase", {p: p == state.phase for p in PHASES}
    )
    yield GaugeMetricFamily(f"{PREFIX}counting_since_seconds", "Unix time from which counts are.", value=state.since_s)
    responses = {str(status): count for status, count in sorted(state.responses.items())}
    yield _counter("http_responses", "HTTP responses by status; 499: the client had left.", "status", responses)
    yield from _of_requests(state.requests)
    if state.engine is not None:
        yield from _of_engine(state.engine, state.moe_layers)


def _of_requests(meter: RequestMeter) -> Iterator[Metric]:
    text = "Requests by how they ended; `stop` and `length` are answers as asked for."
    ended: dict[str, float] = dict(meter.ended.items())
    yield _counter("request_success", text, "finished_reason", ended)
    yield _histogram("time_to_first_token_seconds", "From a request to its first token.", meter.ttft_s)
    yield _histogram("inter_token_latency_seconds", "Gaps between deliveries of tokens.", meter.itl_s)
    text = "Time of a request from first to last token, by each token after the first."
    yield _histogram("time_per_output_token_seconds", text, meter.tpot_s)
    yield _histogram("e2e_request_latency_seconds", "From a request to its end.", meter.e2e_s)
    yield _histogram("request_prompt_tokens", "Prompt tokens of a request.", meter.prompt_tokens)
    yield _histogram("request_generation_tokens", "Tokens generated for a request.", meter.output_tokens)


def _of_engine(stats: EngineStats, moe_layers: Sequence[int]) -> Iterator[Metric]:
    for each in GAUGES:
        yield GaugeMetricFamily(PREFIX + each.name, each.text, value=each.read(stats))
    for each in COUNTERS:
        yield CounterMetricFamily(PREFIX + each.name, each.text, value=each.read(stats))
    for labelled in LABELLED:
        yield _counter(labelled.name, labelled.text, labelled.label, labelled.read(stats))
    balance = {
        str(layer): len(load) * max(load) / sum(load)
        for layer, load in zip(moe_layers, stats.routing.loads, strict=True)
        if any(load)
    }
    yield _gauge(
        "expert_load_max_over_mean", "Choices of a layer's most chosen expert over the mean.", "layer", balance
    )


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counter(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    bounds = (*map(str, histogram.bounds), "+Inf")
    buckets = list(zip(bounds, map(float, histogram.cumulative()), strict=True))
    return HistogramMetricFamily(PREFIX + name, text, buckets=buckets, sum_value=histogram.total)
