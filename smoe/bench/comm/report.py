"""From series to figures."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from smoe.bench.comm.cases import BASE, BEST, CASES, DEDUP, RAGGED
from smoe.bench.comm.measure import Key, Series, ratio
from smoe.bench.comm.report_bytes import add_byte_figures
from smoe.bench.result import Figure, Result

GOALS = {BASE.name: 1.7, DEDUP.name: 1.3}
_PAIRS = ((BEST.name, BASE.name), (BEST.name, DEDUP.name), (RAGGED.name, BEST.name))


def add_figures(result: Result, series: Mapping[Key, Series], *, hosts: int, slow: int) -> None:
    steps = list(dict.fromkeys((mbit, work) for mbit, ranks, work, _ in series if ranks == hosts))
    result.samples["series"] = [_sample(key, each) for key, each in series.items()]
    _goals(result, series, steps, hosts, slow)
    add_byte_figures(result, series, *_largest(steps), hosts=hosts)
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
            for better, base in _PAIRS:
                if (mbit, hosts, works[0], better) not in series:
                    continue
                pairs = [(series[mbit, hosts, work, better], series[mbit, hosts, work, base]) for work in works]
                each = [median(ratio(*pair)) for pair in pairs]
                goal = GOALS.get(base)
                wanted = goal if mbit == slow and phase == "prefill" else None
                shown = ", ".join(f"{work.split()[1]}: {value:.2f}" for work, value in zip(works, each, strict=True))
                result.add(
                    Figure(
                        figure=f"{mbit} Mbit/s, {phase}: {better} over {base}",
                        value=median(each),
                        unit="x",
                        goal=None if wanted is None else f">= {wanted:g} x",
                        met=None if wanted is None else median(each) >= wanted,
                        bound=f"median over rows a step; {shown}",
                    )
                )


def _largest(steps: Sequence[tuple[int, str]]) -> tuple[int, str]:
    """Rate and name of the prefill step with the most rows."""
    prefills = [step for step in steps if step[1].startswith("prefill")]
    return max(prefills, key=lambda step: int(step[1].split()[1]))


def _speed(each: Series, mbit: int) -> Figure:
    rates = each.tokens_per_s()
    counted = each.counted
    return Figure(
        figure=f"{mbit} Mbit/s, {each.work.name}: {each.case.name}",
        value=each.rate,
        unit="tokens/s",
        bound=f"{counted.total / 1e6:.3f} MB a layer, by the formula {counted.formula.total / 1e6:.3f} at LAR "
        f"{100 * counted.formula.lar:.1f} %; {100 * each.share:.0f} % of the step in exchanges; "
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
