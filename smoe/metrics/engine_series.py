"""What is told of an engine's stats: name, help text, and where to read it. Names are vLLM's where it has one."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from smoe.core.stats import EngineStats


class Plain(NamedTuple):
    name: str
    text: str
    read: Callable[[EngineStats], float]


class Labelled(NamedTuple):
    name: str
    text: str
    label: str
    read: Callable[[EngineStats], Mapping[str, float]]


GAUGES = (
    Plain("num_requests_running", "Requests that take part in steps.", lambda s: s.running),
    Plain("num_requests_waiting", "Requests that wait for room.", lambda s: s.waiting),
    Plain(
        "kv_cache_usage_perc",
        "Share of the KV cache's rows in use; 1 is all of them.",
        lambda s: s.kv_rows_used / max(1, s.kv_rows_total),
    ),
    Plain("kv_cache_rows", "Rows that the KV cache has.", lambda s: s.kv_rows_total),
    Plain(
        "expert_memory_budget_bytes",
        "What expert slots and host memory together may take; 0 when all experts are resident.",
        lambda s: s.experts.budget_bytes,
    ),
    Plain("expert_memory_peak_bytes", "The most of that budget ever in use.", lambda s: s.experts.peak_bytes),
    Plain("resident_memory_bytes", "Physical memory of all processes of the engine.", lambda s: s.rss_bytes),
    Plain(
        "peak_resident_memory_bytes", "The most physical memory of each of them, added up.", lambda s: s.peak_rss_bytes
    ),
)
COUNTERS = (
    Plain("prompt_tokens", "Prompt tokens computed, again after a restart.", lambda s: s.prompt_tokens),
    Plain("generation_tokens", "Tokens generated.", lambda s: s.generated_tokens),
    Plain("engine_steps", "Steps of the engine.", lambda s: s.steps),
    Plain("expert_evictions", "Experts evicted from their slots.", lambda s: s.experts.evictions),
    Plain(
        "expert_compulsory_misses",
        "Those cold misses whose expert had never been brought in before.",
        lambda s: s.experts.compulsory_misses,
    ),
    Plain(
        "expert_computed_in_place",
        "Late or missed uses computed where the expert is, without a slot.",
        lambda s: s.experts.computed_in_place,
    ),
    Plain("expert_computed_in_place_rows", "Rows of those uses.", lambda s: s.experts.computed_in_place_rows),
    Plain("expert_prefetch_issued", "Prefetches begun.", lambda s: s.experts.prefetched),
    Plain("expert_prefetch_used", "Prefetches asked for when they had arrived.", lambda s: s.experts.prefetch_used),
    Plain(
        "expert_prefetch_wasted",
        "Prefetches evicted, cancelled or failed without having been asked for.",
        lambda s: s.experts.wasted,
    ),
    Plain(
        "expert_prefetch_cancelled",
        "Prefetches and admissions taken back before they were read.",
        lambda s: s.experts.cancelled,
    ),
    Plain(
        "expert_prefetch_pauses",
        "Times that prefetching into a layer stopped itself because it did not pay.",
        lambda s: s.experts.prefetch_pauses,
    ),
    Plain("expert_admissions", "Transfers begun by background admission.", lambda s: s.experts.admitted),
    Plain("expert_bytes", "Bytes of experts that came into slots.", lambda s: s.experts.bytes_moved),
    Plain("expert_wait_seconds", "Time that layers waited for experts.", lambda s: s.experts.wait_s),
    Plain("expert_transfer_seconds", "Time with a transfer of experts under way.", lambda s: s.experts.transfer_s),
    Plain(
        "substituted_slots",
        "Router choices computed by another expert than the router's.",
        lambda s: s.experts.substituted,
    ),
    Plain(
        "substituted_mass",
        "Router weight of those choices, 1 being all of a row.",
        lambda s: s.experts.substituted_mass,
    ),
    Plain("routed_choices", "Router choices: rows times experts of each.", lambda s: s.routing.choices),
    Plain(
        "local_choices",
        "Router choices whose expert is on the device of their row; over routed_choices: local activation rate.",
        lambda s: s.routing.local,
    ),
    Plain("exchanges", "Collectives between devices, over all devices.", lambda s: s.traffic.calls),
    Plain(
        "exchange_seconds",
        "Time of devices in exchanges, waiting for each other included, over all devices.",
        lambda s: s.traffic.busy_s,
    ),
    Plain("spec_decode_num_drafts", "Steps in which tokens were drafted.", lambda s: s.draft.windows),
    Plain("spec_decode_num_draft_tokens", "Tokens drafted.", lambda s: s.draft.drafted),
    Plain("spec_decode_num_accepted_tokens", "Drafted tokens that the model kept.", lambda s: s.draft.accepted),
    Plain("spec_decode_pauses", "Times that drafting stopped itself because it did not pay.", lambda s: s.draft.pauses),
    Plain("spec_decode_draft_seconds", "Time of drafting.", lambda s: s.draft.draft_s),
    Plain("spec_decode_verify_seconds", "Time of the rest of steps with drafts.", lambda s: s.draft.verify_s),
)
LABELLED = (
    Labelled(
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
    Labelled(
        "link_transfers",
        "Transfers of experts from disk to memory (disk) and from host memory to slots (host).",
        "link",
        lambda s: {"disk": s.experts.disk_transfers, "host": s.experts.host_transfers},
    ),
    Labelled(
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
    Labelled(
        "link_busy_seconds",
        "Time in which a link carried experts.",
        "link",
        lambda s: {"disk": s.experts.disk_s, "host": s.experts.host_s},
    ),
    Labelled(
        "device_choices",
        "Router choices sent to each device, whose experts they are.",
        "device",
        lambda s: {str(device): count for device, count in enumerate(s.routing.by_device)},
    ),
)
