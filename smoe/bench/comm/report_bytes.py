"""Figures of bytes, locality and exactness, on one step of the largest group."""

from collections.abc import Mapping
from statistics import median

from smoe.bench.comm.cases import BASE, BEST, ORACLE, RAGGED, SCATTER, SHUFFLED
from smoe.bench.comm.measure import Key, Series
from smoe.bench.result import Figure, Result

GOAL_BYTES = 0.45


def add_byte_figures(result: Result, series: Mapping[Key, Series], mbit: int, work: str, *, hosts: int) -> None:
    """Of the step `work`; ledgers are compared on all of them."""
    by_case = {
        case: each for (at, ranks, step, case), each in series.items() if (at, ranks, step) == (mbit, hosts, work)
    }
    best, base = by_case[BEST.name].counted, by_case[BASE.name].counted
    saved = 1 - best.total / base.total
    result.add(
        Figure(
            figure=f"{work}: bytes of {BEST.name} below {BASE.name}",
            value=100 * saved,
            unit="%",
            goal=f">= {100 * GOAL_BYTES:g} %",
            met=saved >= GOAL_BYTES,
            bound=f"{best.total / 1e6:.2f} of {base.total / 1e6:.2f} MB a layer over the network, all ranks",
        )
    )
    counted = [each.counted for each in series.values()]
    right = sum(each.equal for each in counted)
    result.add(
        Figure(
            figure="ledger equal to the formula, to the byte",
            value=right / len(counted),
            unit="",
            goal="1",
            met=right == len(counted),
            bound=f"{right} of {len(counted)} pairs of step and case, by purpose, over all layers and ranks",
        )
    )
    for name in (case.name for case in (BASE, SHUFFLED, BEST, RAGGED, ORACLE) if case.name in by_case):
        formula = by_case[name].counted.formula
        result.add(
            Figure(
                figure=f"{work}: local activation rate, {name}",
                value=100 * formula.lar,
                unit="%",
                bound=f"{formula.rows:,.0f} rows dispatched to other ranks a layer",
            )
        )
    tokens = [
        own == other
        for (at, ranks, step, case), each in series.items()
        if (at, ranks, case) == (mbit, hosts, SCATTER.name)
        for best in [series[at, ranks, step, BEST.name]]
        for own, other in zip(each.counted.next_tokens, best.counted.next_tokens, strict=True)
    ]
    result.add(
        Figure(
            figure=f"next tokens of {BEST.name} equal to those of {SCATTER.name}",
            value=100 * sum(tokens) / len(tokens) if tokens else None,
            unit="%",
            bound=f"{len(tokens)} tokens in bf16, where partial sums are rounded by rank; exact in float32, as tested",
        )
    )
    share = median(timed.dispatch_share for timed in by_case[BASE.name].passes)
    result.add(
        Figure(
            figure=f"{mbit} Mbit/s, {work}: all-to-all in the MoE layer, {BASE.name}",
            value=100 * share,
            unit="%",
            bound="dispatch or combine under way, of the time from the end of the all-reduce to the gather",
        )
    )
