"""A model larger than its memory, served: the highest rate within an SLO, by method, at equal expert memory.

The limits are such that paging on demand can hold them at some rate. Prompts and answers are short, since a search
takes several loads of each method.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smoe.bench.result import Figure
from smoe.bench.serve.contenders import smoe_server
from smoe.bench.slo.study import Offered, Study, attainment
from smoe.core.errors import SmoeError
from smoe.metrics.search import highest_rate
from smoe.metrics.slo import Slo
from smoe.workload.demand import Demand

SLO = Slo.parse(["ttft:10000", "tpot:1000"])
SHARE = 0.9
INPUT_LEN = OUTPUT_LEN = 16
START, TOLERANCE = 0.25, 0.15
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    flags: tuple[str, ...] = ()


DEMAND = Method("demand LRU", ("--expert-policy", "evict=lru"))
LOOKAHEAD = Method("look-ahead", ("--expert-policy", "evict=lru,prefetch=gate:width=2"))
SELF_DRAFT = Method("INT4 self-draft", ("--draft", "int4", "--draft-tokens", "8"))
RESIDUAL = Method("INT4 self-draft, residuals", ("--draft", "int4", "--draft-tokens", "8", "--draft-residual"))
PLAN: dict[str, tuple[Method, ...]] = {
    "25%": (DEMAND, LOOKAHEAD, SELF_DRAFT),
    "40%": (DEMAND, SELF_DRAFT, RESIDUAL),
}
"""The 4-bit copy takes 27 % of the experts' bytes: at 25 % it is refused, and the figure says so."""
QUICK_PLAN: dict[str, tuple[Method, ...]] = {"25%": (DEMAND, SELF_DRAFT)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`rate` in requests/s held and `missed` did not, if one was tried; `why` there is none."""

    memory: str
    method: str
    rate: float | None
    missed: float | None = None
    why: str | None = None
    points: tuple[dict[str, Any], ...] = ()


def search(
    folder: Path, memory: str, method: Method, text: Sequence[int], *, requests: int, most: int, note: Note
) -> Found:
    """At most `most` loads of `requests` requests each, Poisson arrivals."""
    flags = ["--in-process", "--model", str(folder), "--expert-memory", memory, *method.flags]
    note(f"{method.name} at {memory}")
    try:
        with smoe_server(method.name, flags) as server, server.turn():
            return _search(server.target, memory, method, text, requests, most, note)
    except SmoeError as error:
        return Found(memory=memory, method=method.name, rate=None, why=str(error).splitlines()[0])


def _search(
    target: Any, memory: str, method: Method, text: Sequence[int], requests: int, most: int, note: Note
) -> Found:
    demand = Demand(num_requests=requests, input_len=INPUT_LEN, output_len=OUTPUT_LEN, seed=0)
    study = Study(target=target, demand=demand, slo=SLO, text=text)
    study.warm_up(1)
    points: list[dict[str, Any]] = []
    missed: list[float] = []

    def holds(rate: float) -> bool:
        if len(points) >= most:
            missed.append(rate)
            return False
        [point] = study.at(Offered(rate=rate))
        share = attainment([point], SLO)
        points.append({"rate": rate, "share": share, **point.figures})
        note(f"{method.name} at {memory}: {rate:.3g}/s, {100 * share:.0f} % within")
        return share >= SHARE

    found = highest_rate(holds, start=START, tolerance=TOLERANCE, lowest=START / 16, highest=START * 64)
    tried = [rate for rate, held in found.trials if not held and rate not in missed]
    rate = found.rate or None
    why = None if rate else f"none held, down to {min(tried):.3g}/s"
    return Found(
        memory=memory,
        method=method.name,
        rate=rate,
        missed=min(tried, default=None),
        why=why,
        points=tuple(points),
    )


def figures(found: Sequence[Found]) -> list[Figure]:
    base = {each.memory: each.rate for each in found if each.method == DEMAND.name}
    made = []
    for each in found:
        demand = base.get(each.memory)
        ratio = each.rate / demand if each.rate and demand else None
        parts = [f"held at each of {len(each.points)} loads" if each.missed is None else f"{each.missed:.3g}/s missed"]
        if ratio is not None and each.method != DEMAND.name:
            least = "at least " if each.missed is None else ""
            parts.append(f"{least}{ratio:.2f}x demand LRU at {each.memory}")
        parts += [_load(point) for point in sorted(each.points, key=lambda point: float(point["rate"]))]
        made.append(
            Figure(
                figure=f"{each.method}, {each.memory} of experts: highest rate with {100 * SHARE:g} % within {SLO}",
                value=each.rate,
                unit="requests/s",
                bound=each.why or "; ".join(parts),
            )
        )
    return made


def _load(point: dict[str, Any]) -> str:
    ttft, tpot = (
        "none" if point[key] is None else f"{point[key]:,.0f} ms" for key in ("median_ttft_ms", "median_tpot_ms")
    )
    return f"at {point['rate']:.3g}/s {100 * point['share']:.0f} % within, median TTFT {ttft}, TPOT {tpot}"
