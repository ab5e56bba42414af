"""Collecting the answers of one `generate` run, and showing them."""

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from smoe.answers import Completion, complete
from smoe.cli.terminal import Streamer
from smoe.core.client import EngineClient
from smoe.core.model_info import ModelInfo
from smoe.core.request import Request, TokenLogprob
from smoe.core.stats import DraftStats, ExpertStats
from smoe.inbox import Inbox


@dataclass(frozen=True, slots=True)
class Run:
    """`submitted_s` is a `time.perf_counter` value; `experts` and `draft` count the whole run, over all its prompts."""

    completions: list[Completion]
    submitted_s: float
    experts: ExpertStats
    draft: DraftStats
    info: ModelInfo


def collect(client: EngineClient, requests: Sequence[Request], streamer: Streamer | None) -> Run:
    """Runs all requests at the same time; shows each answer while it grows, in the order of the prompts."""
    info = client.info()
    before = client.stats()
    inbox = Inbox(client)
    submitted_s = time.perf_counter()
    inbox.submit(requests)
    completions = []
    for index, request in enumerate(requests):
        arrivals = []
        if streamer:
            streamer.begin(index)
        for arrived, delta in inbox.read(request.request_id):
            arrivals.append((arrived, delta))
            if streamer:
                streamer.piece(delta, has_text=info.has_tokenizer)
        if streamer:
            streamer.end()
        wants_logprobs = request.params.logprobs is not None
        completions.append(
            complete(request.prompt_token_ids, arrivals, text=info.has_tokenizer, logprobs=wants_logprobs)
        )
    after = client.stats()
    experts, draft = after.experts.since(before.experts), after.draft.since(before.draft)
    return Run(completions, submitted_s, experts, draft, info)


def print_json(run: Run, out: TextIO) -> None:
    """A list with one object a line."""
    objects = [json.dumps(_object(run, completion), allow_nan=False) for completion in run.completions]
    print("[\n" + ",\n".join(objects) + "\n]", file=out)


def _object(run: Run, completion: Completion) -> dict[str, Any]:
    usage = completion.usage
    return {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "error": completion.error,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
        },
        "logprobs": None if completion.logprobs is None else [_logprob(entry) for entry in completion.logprobs],
        "lossy": run.info.lossy,
        "substituted_slots": completion.substituted_slots,
        "substituted_mass": completion.substituted_mass,
        "stats": {
            "tokens_per_s": _decode_rate([completion]),
            "ttft_ms": _ttft_ms(run, completion),
            "expert_tiers": list(run.info.expert_tiers),
            "emulated_link": run.info.emulated_link,
            "expert_hits": run.experts.hits,
            "expert_misses": run.experts.misses,
            "expert_late": run.experts.late,
            "expert_prefetched": run.experts.prefetched,
            "expert_wasted": run.experts.wasted,
            "bytes_moved": run.experts.bytes_moved,
            "links": {
                name: {field: getattr(run.experts, f"{name}_{field}") for field in ("transfers", "bytes", "s")}
                for name in run.info.expert_tiers
            },
            "expert_budget_bytes": run.experts.budget_bytes,
            "expert_peak_bytes": run.experts.peak_bytes,
            "draft_bytes": run.info.draft_bytes,
        },
    }


def _logprob(entry: TokenLogprob) -> dict[str, Any]:
    top = [{"id": token_id, "logprob": _finite(logprob)} for token_id, logprob in entry.top]
    return {"id": entry.token_id, "logprob": _finite(entry.logprob), "top": top}


def _finite(value: float) -> float | None:
    """JSON has no infinities; a token of probability zero has no log."""
    return value if math.isfinite(value) else None


def _ttft_ms(run: Run, completion: Completion) -> float | None:
    return None if completion.first_token_s is None else (completion.first_token_s - run.submitted_s) * 1e3


def _decode_rate(completions: Sequence[Completion]) -> float | None:
    """Tokens after the first ones, over the time from the first token of all to the last; None for a single token."""
    starts = [c.first_token_s for c in completions if c.first_token_s is not None]
    ends = [c.last_token_s for c in completions if c.last_token_s is not None]
    tokens = sum(len(c.token_ids) for c in completions) - len(starts)
    if not starts or tokens < 1 or max(ends) <= min(starts):
        return None
    return tokens / (max(ends) - min(starts))


def print_table(run: Run) -> None:
    from rich.console import Console
    from rich.table import Table

    rate = _decode_rate(run.completions)
    ttfts = [value for completion in run.completions if (value := _ttft_ms(run, completion)) is not None]
    experts, info = run.experts, run.info
    beside = f", and {size(info.draft_bytes)} of the draft" if info.draft_bytes else ""
    table = Table(show_header=False)
    rows = (
        ("decode", "one token" if rate is None else f"{rate:,.1f} tokens/s"),
        ("time to first token", "no token" if not ttfts else f"{max(ttfts):,.0f} ms"),
        ("expert hits / misses", f"{experts.hits:,} / {experts.misses:,}"),
        ("expert bytes moved", size(experts.bytes_moved)),
        ("expert memory: bound", (size(experts.budget_bytes) if experts.budget_bytes else "all resident") + beside),
        ("expert memory: peak", size(experts.peak_bytes) if experts.peak_bytes else "all resident"),
    )
    for name, figure in rows:
        table.add_row(name, figure)
    if info.emulated_link is not None:
        table.add_row("experts come over", f"an emulated link from {info.expert_tiers[-1]} of {info.emulated_link}")
    for name in info.expert_tiers if len(info.expert_tiers) > 1 else ():
        transfers, nbytes = (getattr(experts, f"{name}_{field}") for field in ("transfers", "bytes"))
        table.add_row(f"experts from {name}", f"{transfers:,}: {size(nbytes)}")
    if experts.prefetched:
        ended = f"{experts.prefetch_used:,} on time, {experts.late:,} late, {experts.wasted:,} wasted"
        table.add_row("experts prefetched", f"{experts.prefetched:,}: {ended}")
    if run.draft.windows:
        draft = run.draft
        kept = f"{draft.drafted:,} in {draft.windows:,} windows, {draft.accepted / draft.drafted:.1%} kept"
        table.add_row("drafted tokens", kept)
    if run.draft.pauses:
        table.add_row("drafting paused", f"{run.draft.pauses:,} times: it did not pay")
    if info.lossy:
        slots, mass = (sum(getattr(c, f"substituted_{name}") for c in run.completions) for name in ("slots", "mass"))
        table.add_row("lossy: substituted", f"{slots:,} expert choices of router weight {mass:,.2f}")
    Console(stderr=True).print(table)


def report_failures(run: Run) -> bool:
    """One line on stderr for each answer that ended in an error."""
    failed = [(i, c) for i, c in enumerate(run.completions) if c.finish_reason in ("error", "numeric_error")]
    for index, completion in failed:
        print(f"error: prompt {index + 1}: {completion.finish_reason} ({completion.error})", file=sys.stderr)
    return bool(failed)


def size(num_bytes: float) -> str:
    """`5.9 MB`: three digits, powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"
