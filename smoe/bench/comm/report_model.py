"""Figures of the alpha-beta model and of the closed load."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from smoe.bench.comm.alpha_beta import Line
from smoe.bench.comm.cases import BASE, BEST
from smoe.bench.comm.load import LoadPlan
from smoe.bench.result import Figure, Result


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
