"""`smoe top` in rows: what a server did between two looks at its metrics."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from smoe.cli.answers import size
from smoe.metrics.scrape import Change

_LATENCIES = (
    ("TTFT", "time_to_first_token_seconds"),
    ("TPOT", "time_per_output_token_seconds"),
    ("ITL", "inter_token_latency_seconds"),
    ("e2e", "e2e_request_latency_seconds"),
)


class Row(NamedTuple):
    name: str
    text: str


def rows(change: Change, url: str) -> Iterator[Row]:
    """Those that mean something for this server: experts that move, drafts and devices only where there are some."""
    now = change.now
    [model] = now.labelled("model_info", "model") or ["?"]
    phases = [phase for phase, holds in now.labelled("engine_phase", "phase").items() if holds]
    began = datetime.fromtimestamp(now.value("counting_since_seconds") or now.at_s, UTC)
    yield Row("server", f"{model} at {url}, {'/'.join(phases)}, since {began:%m-%d %H:%M} UTC")
    yield Row("interval", f"{change.seconds:.1f} s")
    yield Row("requests", _requests(change))
    for name, metric in _LATENCIES:
        yield Row(name, f"p50 {_ms(change.quantile(metric, 0.5))} · p90 {_ms(change.quantile(metric, 0.9))}")
    if now.value("num_requests_running") is None:
        return
    prompts = _per_s(change.rate("prompt_tokens_total"))
    yield Row("tokens", f"{_per_s(change.rate('generation_tokens_total'))} · prompts {prompts}")
    resident = size(now.value("resident_memory_bytes") or 0)
    yield Row("memory", f"KV cache {_percent(now.value('kv_cache_usage_perc'))} · resident {resident}")
    if now.value("expert_memory_budget_bytes"):
        yield from _experts(change)
    if now.value("spec_decode_num_drafts_total"):
        yield Row("drafts", _drafts(change))
    if now.value("exchanges_total"):
        yield Row("devices", _devices(change))
    balance = now.labelled("expert_load_max_over_mean", "layer")
    if balance:
        layer = max(balance, key=lambda each: balance[each])
        mean = sum(balance.values()) / len(balance)
        yield Row(
            "balance", f"most chosen expert over mean: {mean:.2f} · layer {layer} {balance[layer]:.2f}, of all counted"
        )


def _requests(change: Change) -> str:
    now = change.now
    whole = sum(change.count("request_success_total", finished_reason=reason) or 0 for reason in ("stop", "length"))
    ended = change.count("request_success_total") or 0
    refused = sum(
        change.count("http_responses_total", status=status) or 0
        for status in now.labelled("http_responses_total", "status")
        if status >= "400"
    )
    running, waiting = (_count(now.value(f"num_requests_{state}")) for state in ("running", "waiting"))
    rate = _per_s(None if change.seconds <= 0 else whole / change.seconds)
    return f"{rate} · running {running} · waiting {waiting} · failed {ended - whole:.0f} · HTTP errors {refused:.0f}"


def _experts(change: Change) -> Iterator[Row]:
    now, uses = change.now, change.count("expert_uses_total") or 0
    hits = change.count("expert_uses_total", outcome="hit") or 0
    waited = change.rate("expert_wait_seconds_total")
    budget = size(now.value("expert_memory_budget_bytes") or 0)
    yield Row(
        "experts",
        f"hits {_percent(hits / uses if uses else None)} · waiting {_percent(waited)} of time"
        f" · {_per_s(change.rate('expert_evictions_total'))} evicted · budget {budget}",
    )
    yield Row("links", " · ".join(_links(change, "disk", "host")) or "idle")
    issued = change.count("expert_prefetch_issued_total") or 0
    if now.value("expert_prefetch_issued_total"):
        parts = {
            "on time": change.count("expert_prefetch_used_total"),
            "late": change.count("expert_uses_total", outcome="late"),
            "wasted": change.count("expert_prefetch_wasted_total"),
        }
        # What an interval ends may have been begun before it.
        all_of_them = max(issued, sum(count or 0 for count in parts.values()))
        shares = [
            f"{name} {_percent((count or 0) / all_of_them if all_of_them else None)}" for name, count in parts.items()
        ]
        yield Row("prefetch", f"{_per_s(change.rate('expert_prefetch_issued_total'))} · {' · '.join(shares)}")
    if now.value("substituted_slots_total"):
        share = change.ratio("substituted_slots_total", "routed_choices_total")
        yield Row("replaced", f"{_percent(share)} of the router's choices")


def _links(change: Change, *links: str) -> Iterator[str]:
    for link in links:
        if change.now.value("link_bytes_total", link=link):
            busy = change.rate("link_busy_seconds_total", link=link)
            share = "" if busy is None else f" {_percent(busy)} busy"
            yield f"{link} {size(change.rate('link_bytes_total', link=link) or 0)}/s{share}"


def _drafts(change: Change) -> str:
    kept = change.ratio("spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total")
    drafted = _per_s(change.rate("spec_decode_num_draft_tokens_total"))
    return f"{_percent(kept)} kept · {drafted} drafted · pauses {change.count('spec_decode_pauses_total') or 0:.0f}"


def _devices(change: Change) -> str:
    local = _percent(change.ratio("local_choices_total", "routed_choices_total"))
    num = len(change.now.labelled("device_choices_total", "device"))
    share = change.rate("exchange_seconds_total")
    spent = _percent(None if share is None else share / max(1, num))
    moved = _links(change, "devices", "network")
    return " · ".join((f"{num}", f"local choices {local}", f"in exchanges {spent} of the time", *moved))


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _per_s(value: float | None) -> str:
    if value is None:
        return "-/s"
    return f"{value:,.0f}/s" if value >= 10 else f"{value:.2f}/s"


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{1e3 * value:,.0f} ms" if value >= 0.1 else f"{1e3 * value:.2g} ms"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
