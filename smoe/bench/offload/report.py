"""From measurements to figures."""

from collections.abc import Sequence
from statistics import median

from smoe.bench.offload.bound import hidden, shares, speedups, tokens_per_s
from smoe.bench.offload.measure import Capacity
from smoe.bench.result import Figure

GOAL_SHARE, GOAL_PERCENT = 0.85, 25
GOAL_RSS_BYTES = 400 * 10**6


def capacity_figures(found: Capacity, demand: str, chosen: str, *, lossy: bool) -> list[Figure]:
    figures: list[Figure] = []
    for name in (demand, chosen):
        figures += _speed(found, name)
        if name == demand or not lossy:
            equal = found.answers_equal[name]
            title = _title(found, name, "answers equal those of the resident model")
            figures.append(Figure(figure=title, value=float(equal), unit="", goal="1", met=equal))
    figures += _pair(found, demand, chosen)
    if found.percent == GOAL_PERCENT:
        figures += [_memory(found, name) for name in (demand, chosen)]
    return figures


def _speed(found: Capacity, name: str) -> list[Figure]:
    rates, reached = tokens_per_s(found.rounds, name), shares(found.rounds, name)
    samples = [r.samples[name] for r in found.rounds]
    moved = median(s.moved_bytes_per_step for s in samples)
    link = median(r.bound.link_bytes_per_s for r in found.rounds)
    compute = median(r.bound.compute_s for r in found.rounds)
    bound_ms = 1000 * max(compute, moved / link)
    by_link = moved / link > compute
    what = f"{moved / 1e6:.0f} MB a token at {link / 1e9:.2f} GB/s" if by_link else "arithmetic"
    hit = 100 * median(s.hit_rate for s in samples)
    is_goal = found.percent == GOAL_PERCENT
    cold = found.cold[name]
    return [
        Figure(
            figure=_title(found, name, "warm decode"),
            value=median(rates),
            unit="tokens/s",
            bound=f"spread {min(rates):.2f}..{max(rates):.2f}, hits {hit:.0f} %",
        ),
        Figure(
            figure=_title(found, name, "cold decode"),
            value=median(1 / s.mean_step_s for s in cold),
            unit="tokens/s",
            bound=f"first token after {median(s.ttft_s for s in cold):.2f} s from an empty cache",
        ),
        Figure(
            figure=_title(found, name, "share of the bound"),
            value=100 * median(reached),
            unit="%",
            goal=f">= {100 * GOAL_SHARE:.0f} %" if is_goal else None,
            met=median(reached) >= GOAL_SHARE if is_goal else None,
            bound=f"{what}: {bound_ms:.1f} ms a token; spread {100 * min(reached):.0f}..{100 * max(reached):.0f} %",
        ),
    ]


def _pair(found: Capacity, demand: str, chosen: str) -> list[Figure]:
    ratios = speedups(found.rounds, chosen, demand)
    figures = [
        Figure(
            figure=f"{found.percent:g} %: speed of {chosen} over {demand}",
            value=median(ratios),
            unit="x",
            bound=f"paired, one run; spread {min(ratios):.2f}..{max(ratios):.2f}",
        )
    ]
    for name in (demand, chosen):
        figures.append(link_figure(found, name))
        share = hidden(found.rounds, name)
        figures.append(
            Figure(
                figure=_title(found, name, "transfer time hidden behind arithmetic"),
                value=None if share is None else 100 * share,
                unit="%",
                bound="of the time that the moved bytes take on the link",
            )
        )
    return figures


def link_figure(found: Capacity, name: str) -> Figure:
    """Rate of the link while it has something to do; a goal only where the link bounds the step."""
    ratios = [
        r.samples[name].experts.bytes_moved / r.samples[name].experts.transfer_s / r.bound.link_bytes_per_s
        for r in found.rounds
        if r.samples[name].experts.transfer_s > 0
    ]
    bounds = any(r.bound.is_link(r.samples[name].moved_bytes_per_step) for r in found.rounds)
    value = median(ratios) if ratios else None
    return Figure(
        figure=_title(found, name, "link rate while transferring, of plain direct reads"),
        value=None if value is None else 100 * value,
        unit="%",
        goal=f">= {100 * GOAL_SHARE:.0f} % while misses bound the step" if bounds else None,
        met=None if value is None or not bounds else value >= GOAL_SHARE,
    )


def _memory(found: Capacity, name: str) -> Figure:
    peak, budget = found.peak_rss_bytes[name], found.budget_bytes[name]
    over = peak - budget
    return Figure(
        figure=_title(found, name, "peak RSS above the experts' budget"),
        value=over / 1e6,
        unit="MB",
        goal=f"<= {GOAL_RSS_BYTES / 1e6:.0f} MB",
        met=over <= GOAL_RSS_BYTES,
        bound=f"peak {peak / 1e6:.0f} MB, budget {budget / 1e6:.0f} MB",
    )


def _title(found: Capacity, name: str, what: str) -> str:
    return f"{found.percent:g} % {name}: {what}"


def sample_rows(measured: Sequence[Capacity]) -> list[dict[str, object]]:
    """Everything that was measured, for the result file."""
    return [
        {
            "percent": found.percent,
            "budget_bytes": found.budget_bytes,
            "peak_rss_bytes": found.peak_rss_bytes,
            "answers_equal": found.answers_equal,
            "cold": {name: [s.to_json() for s in samples] for name, samples in found.cold.items()},
            "rounds": [
                {
                    "compute_s": r.bound.compute_s,
                    "link_bytes_per_s": r.bound.link_bytes_per_s,
                    "samples": {name: s.to_json() for name, s in r.samples.items()},
                }
                for r in found.rounds
            ],
        }
        for found in measured
    ]
