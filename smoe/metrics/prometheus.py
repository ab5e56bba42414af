"""What a server measures, as Prometheus metrics: names as vLLM has them where it has them, under `smoe:`.

Nothing is counted here: every value is read when it is asked for. Labels have few values, whatever is asked of the
server: outcomes, links, decoder layers, devices, HTTP status codes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from smoe.core.stats import EngineStats
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


class _Plain(NamedTuple):
    name: str
    text: str
    read: Callable[[EngineStats], float]


class _Labelled(NamedTuple):
    name: str
    text: str
    label: str
    read: Callable[[EngineStats], Mapping[str, float]]


_GAUGES = (
    _Plain("num_requests_running", "Requests that take part in steps.", lambda s: s.running),
    _Plain("num_requests_waiting", "Requests that wait for room.", lambda s: s.waiting),
    _Plain(
        "kv_cache_usage_perc",
        "Share of the KV cache's rows in use; 1 is all of them.",
        lambda s: s.kv_rows_used / max(1, s.kv_rows_total),
    ),
    _Plain("kv_cache_rows", "Rows that the KV cache has.", lambda s: s.kv_rows_total),
    _Plain(
        "expert_memory_budget_bytes",
        "What expert slots and host memory together may take; 0 when all experts are resident.",
        lambda s: s.experts.budget_bytes,
    ),
    _Plain("expert_memory_peak_bytes", "The most of that budget ever in use.", lambda s: s.experts.peak_bytes),
    _Plain("resident_memory_bytes", "Physical memory of all processes of the engine.", lambda s: s.rss_bytes),
    _Plain(
        "peak_resident_memory_bytes", "The most physical memory of each of them, added up.", lambda s: s.peak_rss_bytes
    ),
)
_COUNTERS = (
    _Plain("prompt_tokens", "Prompt tokens computed, again after a restart.", lambda s: s.prompt_tokens),
    _Plain("generation_tokens", "Tokens generated.", lambda s: s.generated_tokens),
    _Plain("engine_steps", "Steps of the engine.", lambda s: s.steps),
    _Plain("expert_evictions", "Experts evicted from their slots.", lambda s: s.experts.evictions),
    _Plain(
        "expert_compulsory_misses",
        "Those cold misses whose expert had never been brought in before.",
        lambda s: s.experts.compulsory_misses,
    ),
    _Plain(
        "expert_computed_in_place",
        "Late or missed uses computed where the expert is, without a slot.",
        lambda s: s.experts.computed_in_place,
    ),
    _Plain("expert_computed_in_place_rows", "Rows of those uses.", lambda s: s.experts.computed_in_place_rows),
    _Plain("expert_prefetch_issued", "Prefetches begun.", lambda s: s.experts.prefetched),
    _Plain("expert_prefetch_used", "Prefetches asked for when they had arrived.", lambda s: s.experts.prefetch_used),
    _Plain(
        "expert_prefetch_wasted",
        "Prefetches evicted, cancelled or failed without having been asked for.",
        lambda s: s.experts.wasted,
    ),
    _Plain(
        "expert_prefetch_cancelled",
        "Prefetches and admissions taken back before they were read.",
        lambda s: s.experts.cancelled,
    ),
    _Plain(
        "expert_prefetch_pauses",
        "Times that prefetching into a layer stopped itself because it did not pay.",
        lambda s: s.experts.prefetch_pauses,
    ),
    _Plain("expert_admissions", "Transfers begun by background admission.", lambda s: s.experts.admitted),
    _Plain("expert_bytes", "Bytes of experts that came into slots.", lambda s: s.experts.bytes_moved),
    _Plain("expert_wait_seconds", "Time that layers waited for experts.", lambda s: s.experts.wait_s),
    _Plain("expert_transfer_seconds", "Time with a transfer of experts under way.", lambda s: s.experts.transfer_s),
    _Plain(
        "substituted_slots",
        "Router choices computed by another expert than the router's.",
        lambda s: s.experts.substituted,
    ),
    _Plain(
        "substituted_mass",
        "Router weight of those choices, 1 being all of a row.",
        lambda s: s.experts.substituted_mass,
    ),
    _Plain("routed_choices", "Router choices: rows times experts of each.", lambda s: s.routing.choices),
    _Plain(
        "local_choices",
        "Router choices whose expert is on the device of their row; over routed_choices: local activation rate.",
        lambda s: s.routing.local,
    ),
    _Plain("exchanges", "Collectives between devices, over all devices.", lambda s: s.traffic.calls),
    _Plain(
        "exchange_seconds",
        "Time of devices in exchanges, waiting for each other included, over all devices.",
        lambda s: s.traffic.busy_s,
    ),
    _Plain("spec_decode_num_drafts", "Steps in which tokens were drafted.", lambda s: s.draft.windows),
    _Plain("spec_decode_num_draft_tokens", "Tokens drafted.", lambda s: s.draft.drafted),
    _Plain("spec_decode_num_accepted_tokens", "Drafted tokens that the model kept.", lambda s: s.draft.accepted),
    _Plain(
        "spec_decode_pauses", "Times that drafting stopped itself because it did not pay.", lambda s: s.draft.pauses
    ),
    _Plain("spec_decode_draft_seconds", "Time of drafting.", lambda s: s.draft.draft_s),
    _Plain("spec_decode_verify_seconds", "Time of the rest of steps with drafts.", lambda s: s.draft.verify_s),
)
_LABELLED = (
    _Labelled(
        "expert_uses",
        "Uses of an expert by a layer of a forward: it was resident (hit), its prefetch had not arrived (late), it was"
        " missing (cold_miss), or evicted during this same forward (collision_miss).",
        "outcome",
        lambda s: {
            "hit": s.experts.hits,
            "late": s.experts.late,
            "cold_miss": s.experts.cold_misses,
            "collision_miss": s.experts.collision_misses,
        },
    ),
    _Labelled(
        "link_transfers",
        "Transfers of experts from disk to memory (disk) and from host memory to slots (host).",
        "link",
        lambda s: {"disk": s.experts.disk_transfers, "host": s.experts.host_transfers},
    ),
    _Labelled(
        "link_bytes",
        "Bytes of experts over disk and host, and of exchanges between devices of one host (devices) and of several"
        " (network).",
        "link",
        lambda s: {
            "disk": s.experts.disk_bytes,
            "host": s.experts.host_bytes,
            "devices": s.traffic.host_bytes,
            "network": s.traffic.network_bytes,
        },
    ),
    _Labelled(
        "link_busy_seconds",
        "Time in which a link carried experts.",
        "link",
        lambda s: {"disk": s.experts.disk_s, "host": s.experts.host_s},
    ),
    _Labelled(
        "device_choices",
        "Router choices sent to each device, whose experts they are.",
        "device",
        lambda s: {str(device): count for device, count in enumerate(s.routing.by_device)},
    ),
)


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
    for each in _GAUGES:
        yield GaugeMetricFamily(PREFIX + each.name, each.text, value=each.read(stats))
    for each in _COUNTERS:
        yield CounterMetricFamily(PREFIX + each.name, each.text, value=each.read(stats))
    for labelled in _LABELLED:
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
