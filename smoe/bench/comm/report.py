"""From series to figures."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from smoe.bench.comm.alpha_beta import Line
from smoe.bench.comm.cases import BASE, BEST, CASES, DEDUP, ORACLE, RAGGED, SHUFFLED
from smoe.bench.comm.load import LoadPlan
from smoe.bench.comm.measure import Series, ratio
from smoe.bench.result import Figure, Result

GOALS = {BASE.name: 1.7, DEDUP.name: 1.3}
GOAL_BYTES = 0.45
Key = tuple[int, int, str, str]
"""Mbit/s, ranks, name of the step, name of the case."""


def add_figures(result: Result, series: Mapping[Key, Series], *, hosts: int, slow: int) -> None:
    steps = list(dict.fromkeys((mbit, work) for mbit, ranks, work, _ in series if ranks == hosts))
    result.samples["series"] = [_sample(key, each) for key, each in series.items()]
    _goals(result, series, steps, hosts, slow)
    _bytes(result, series, steps, hosts)
    for mbit, work in steps:
        for case in CASES:
            if (each := series.get((mbit, hosts, work, case.name))) is not None:
                result.add(_speed(each, mbit))


def _goals(
    result: Result, series: Mapping[Key, Series], steps: Sequence[tuple[int, str]], hosts: int, slow: int
) -> None:
    for mbit in dict.fromkeys(mbit for mbit, _ in steps):
        for phase in ("prefill", "decode"):
            works = [work for at, work in steps if at == mbit and work.startswith(phase)]
            for base, goal in GOALS.items():
                pairs = [(series[mbit, hosts, work, BEST.name], series[mbit, hosts, work, base]) for work in works]
                each = [median(ratio(*pair)) for pair in pairs]
                wanted = goal if mbit == slow and phase == "prefill" else None
                shown = ", ".join(f"{work.split()[1]}: {value:.2f}" for work, value in zip(works, each, strict=True))
                result.add(
                    Figure(
                        figure=f"{mbit} Mbit/s, {phase}: {BEST.name} over {base}",
                        value=median(each),
                        unit="x",
                        goal=None if wanted is None else f">= {wanted:g} x",
                        met=None if wanted is None else median(each) >= wanted,
                        bound=f"median over rows a step; {shown}",
                    )
                )


def _bytes(result: Result, series: Mapping[Key, Series], steps: Sequence[tuple[int, str]], hosts: int) -> None:
    mbit, work = max(
        (step for step in steps if step[1].startswith("prefill")), key=lambda step: int(step[1].split()[1])
    )
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
    share = median(timed.dispatch_share for timed in by_case[BASE.name].passes)
    result.add(
        Figure(
            figure=f"{mbit} Mbit/s, {work}: all-to-all in the MoE layer, {BASE.name}",
            value=100 * share,
            unit="%",
            bound="sizes, dispatch and combine, of the time from the end of the all-reduce to the start of the gather",
        )
    )


def _speed(each: Series, mbit: int) -> Figure:
    rates = each.tokens_per_s()
    counted = each.counted
    return Figure(
        figure=f"{mbit} Mbit/s, {each.work.name}: {each.case.name}",
        value=each.rate,
        unit="tokens/s",
        bound=f"{counted.total / 1e6:.3f} MB a layer, {100 * each.share:.0f} % of the step in exchanges; "
        f"spread {min(rates):.0f}..{max(rates):.0f}",
    )


def _sample(key: Key, each: Series) -> dict[str, Any]:
    mbit, ranks, work, case = key
    counted = each.counted
    return {
        "mbit": mbit,
        "ranks": ranks,
        "step": work,
        "case": case,
        "step_s": [timed.step_s for timed in each.passes],
        "exchanges_s": [timed.comm_s for timed in each.passes],
        "dispatch_share": [timed.dispatch_share for timed in each.passes],
        "bytes_a_layer": counted.ledger,
        "bytes_a_layer_by_formula": counted.formula.wire,
        "bytes_a_layer_by_link": counted.classes,
        "hidden_states_bytes_a_layer": counted.formula.hidden_only,
        "lar": counted.formula.lar,
        "rows_to_other_ranks_a_layer": counted.formula.rows,
    }


def add_model_figures(
    result: Result, rows: Sequence[Mapping[str, Any]], lines: Mapping[tuple[int, int], Mapping[str, Line]]
) -> None:
    for (mbit, ranks), by_kind in lines.items():
        own = [row for row in rows if (row["mbit"], row["ranks"]) == (mbit, ranks)]
        off = [abs(row["predicted_ms"] / row["measured_ms"] - 1) for row in own]
        shown = "; ".join(
            f"{kind}: {1000 * line.alpha_s:.2f} ms, {line.mbit_per_s:.0f} Mbit/s" for kind, line in by_kind.items()
        )
        result.add(
            Figure(
                figure=f"{mbit} Mbit/s, {ranks} ranks: alpha-beta model off by",
                value=100 * median(off),
                unit="%",
                bound=f"median of {len(own)} pairs of step and case, most {100 * max(off):.0f} %; fitted {shown}",
            )
        )


def add_load_figures(result: Result, found: Mapping[str, Mapping[str, float]], mbit: int, plan: LoadPlan) -> None:
    for name in ("ttft", "tpot", "p90 tbt"):
        base, best = found[BASE.name][name], found[BEST.name][name]
        result.add(
            Figure(
                figure=f"{mbit} Mbit/s, closed load: {name.upper()} of {BEST.name}",
                value=best,
                unit="ms",
                bound=f"{BASE.name} {base:.1f} ms, {base / best:.2f} x; {plan.requests} requests, {plan.concurrency} "
                f"at a time, {plan.prompt_tokens} + {plan.new_tokens} tokens",
            )
        )
