"""Load points without a server: as many requests within the objectives as a function of the rate says."""

from collections.abc import Callable, Sequence
from typing import Any

from smoe.bench.slo.client import Load
from smoe.bench.slo.study import Offered, Point
from smoe.metrics.serving import RequestRecord
from smoe.metrics.slo import Slo, summarise

SLO = Slo.parse(["ttft:100"])
REQUESTS = 50


def point(offered: Offered, share: float, *, repeat: int = 0, timeline: Sequence[dict[str, float]] = ()) -> Point:
    good = round(share * REQUESTS)
    records = tuple(record(i, 0.05 if i < good else 0.2) for i in range(REQUESTS))
    load = Load(records=records, begun_s=10.0, ended_s=20.0)
    figures = summarise(records, load.duration_s, SLO)
    return Point(offered=offered, repeat=repeat, figures=figures, load=load, timeline=tuple(timeline))


def record(number: int, ttft_s: float) -> RequestRecord:
    sent = 10 + number / 10
    return RequestRecord(
        request_id=str(number),
        scheduled_s=sent,
        sent_s=sent + 0.001,
        prompt_tokens=5,
        output_tokens=3,
        chunk_s=(sent + 0.001 + ttft_s, sent + ttft_s + 0.011, sent + ttft_s + 0.031),
        chunk_tokens=(1, 1, 1),
        status=200,
    )


class MadeUpStudy:
    """What sweeps and searches need of a Study."""

    slo = SLO

    def __init__(self, share_at: Callable[[float], float], repeats: int = 1) -> None:
        self._share_at, self._repeats = share_at, repeats

    def at(self, offered: Offered) -> list[Point]:
        share = self._share_at(offered.rate or 0.0)
        return [point(offered, share, repeat=repeat) for repeat in range(self._repeats)]


def study(share_at: Callable[[float], float], repeats: int = 1) -> Any:
    return MadeUpStudy(share_at, repeats)
