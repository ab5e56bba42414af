"""How much a run measures."""

from dataclasses import dataclass

from smoe.bench.comm.cases import CASES, RAGGED, Case
from smoe.bench.comm.load import LoadPlan

SLOW_MBIT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    cases: tuple[Case, ...]
    mbit: tuple[int, ...]
    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    repeats: int
    growth: tuple[int, ...]
    """Steps at which one and two ranks are measured, too."""
    texts: int
    probes: int
    load: LoadPlan
    steps: int


FULL = Size(
    cases=CASES,
    mbit=(SLOW_MBIT, 1000),
    prefill=(256, 512, 1024, 2048),
    decode=(16, 64, 128),
    repeats=3,
    growth=(256, 1024),
    texts=48,
    probes=5,
    load=LoadPlan(requests=8, concurrency=4, prompt_tokens=192, new_tokens=24, repeats=2),
    steps=48,
)
QUICK = Size(
    cases=tuple(case for case in CASES if case != RAGGED),
    mbit=(SLOW_MBIT,),
    prefill=(256, 512),
    decode=(16,),
    repeats=1,
    growth=(256,),
    texts=16,
    probes=2,
    load=LoadPlan(requests=4, concurrency=2, prompt_tokens=96, new_tokens=8),
    steps=16,
)
