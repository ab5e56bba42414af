"""Serving on this machine as the simulator foretells it, beside what is measured: in process, and over HTTP.

In rounds, for what else the machine does changes from minute to minute: steps and what HTTP adds to them are measured,
by loads of their own, then each rate in process and over HTTP. Costs are fitted to all rounds, and the same requests at
the same times go through the same scheduler in virtual time.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from smoe.bench.result import Figure
from smoe.bench.slo.client import Target
from smoe.bench.slo.corpus import MIXED, corpus
from smoe.bench.slo.engine_load import engine_open_load
from smoe.bench.slo.front_profile import QUICK_LOOPS, Loops, front_of, measure_front
from smoe.bench.slo.orders import orders_of
from smoe.bench.slo.step_profile import QUICK, Grid, measure_steps, pooled
from smoe.bench.slo.study import Offered, Study
from smoe.core.config import EngineConfig
from smoe.engine.build import build_local_client
from smoe.engine.local import LocalClient
from smoe.engine.tokenizer import load_tokenizer
from smoe.metrics.slo import Slo, summarise
from smoe.models.loading import model_folder
from smoe.sim.serving.cost import ByLoad
from smoe.sim.serving.curve import Engine, Load, figures, highest, serve_at
from smoe.sim.serving.fitted import FEATURES, Fit, StepProfile, fit
from smoe.sim.serving.front import BehindFront, ClosedLoop, Front, fit_front
from smoe.workload.demand import Demand

SLO = Slo.parse(["ttft:200", "tpot:20", "tbt_p90:40"])
SHARES_OF_LIMIT = (0.5, 0.75, 0.95)
"""Of the rate up to which the simulator says that the engine alone meets the objectives."""
COMPARED = ("mean_ttft_ms", "p90_ttft_ms", "mean_tpot_ms", "p90_tpot_ms", "mean_tbt_p90_ms", "p90_tbt_p90_ms")
ENGINE, HTTP, WITHOUT = "in process", "over HTTP", "over HTTP, as if it cost nothing"
ROUNDS = 3
_WARM_UP = 8
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One load; `way` is how it was measured, a run a round."""

    way: str
    rate: float
    measured: Sequence[dict[str, Any]]
    predicted: dict[str, Any]

    def middle(self, key: str) -> float:
        return float(median(run[key] for run in self.measured))

    def ratio(self, key: str) -> float:
        return float(self.predicted[key] / self.middle(key))

    def spread(self, key: str) -> str:
        values = [run[key] for run in self.measured]
        return f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""


def predict_and_measure(*, quick: bool = False, note: Note = lambda _: None) -> tuple[list[Figure], dict[str, Any]]:
    """The built-in model, three copies of which are in memory. About four minutes, `quick` one. Figures, and raw
    samples."""
    config = EngineConfig()
    tokenizer = load_tokenizer(model_folder(config.model))
    assert tokenizer is not None, f"{config.model} has no tokenizer"
    text, loops = corpus(MIXED, tokenizer.encode), QUICK_LOOPS if quick else replace(Loops(), repeats=2)
    grid = replace(QUICK if quick else Grid(), repeats=1)
    load = Load(Demand(num_requests=40, input_len=128, output_len=32, len_spread=0.5), min_s=4.0 if quick else 7.0)

    note("steps of the engine")
    profiles = [measure_steps(config, text, grid) for _ in range(2)]
    with ExitStack() as stack:
        client = build_local_client(config)
        stack.callback(client.shutdown)
        engine = _engine(config, client.stats().kv_rows_total)
        limit, _ = highest(engine(fit(pooled(profiles)), None), load, SLO, share=0.99)
        rates = [limit.rate * share for share in SHARES_OF_LIMIT]
        bench = _Bench(client, stack.enter_context(front_of(config)), load, text)
        rounds = 1 if quick else ROUNDS
        for number in range(rounds):
            note(f"round {number + 1} of {rounds}")
            bench.round(rates, loops)
            profiles.append(measure_steps(config, text, grid))

    fitted = fit(pooled(profiles))
    front = fit_front(bench.loops)
    foretold = {ENGINE: None, HTTP: front, WITHOUT: None}
    rows = [
        Compared(
            way=way,
            rate=rate,
            measured=bench.runs[ENGINE if way == ENGINE else HTTP, rate],
            predicted=figures(serve_at(engine(fitted, with_front), load, rate), SLO, rate),
        )
        for way, with_front in foretold.items()
        for rate in rates
    ]
    made = [_fit_figure(fitted), _front_figure(front), *_figures(rows)]
    return made, _samples(rows, fitted, profiles, bench.loops)


class _Bench:
    """`runs` by way and rate, one a round, and the loops of all rounds."""

    def __init__(self, client: LocalClient, target: Target, load: Load, text: Sequence[int]) -> None:
        self._client, self._target, self._load, self._text = client, target, load, text
        self.runs: dict[tuple[str, float], list[dict[str, Any]]] = {}
        self.loops: list[ClosedLoop] = []

    def round(self, rates: Sequence[float], loops: Loops) -> None:
        self.loops += measure_front(self._target, self._client, self._text, loops)
        for rate in rates:
            demand = self._load.at(rate)
            self.runs.setdefault((ENGINE, rate), []).append(self._in_process(demand, rate))
            study = Study(target=self._target, demand=demand, slo=SLO, text=self._text)
            study.warm_up(_WARM_UP)
            self.runs.setdefault((HTTP, rate), []).extend(p.figures for p in study.at(Offered(rate=rate)))

    def _in_process(self, demand: Demand, rate: float) -> dict[str, Any]:
        orders = orders_of(demand.plan(rate), self._text, demand.seed)
        warm_up = [replace(order, request_id=f"warm-{order.request_id}", at_s=0.0) for order in orders[:_WARM_UP]]
        engine_open_load(self._client, warm_up)
        load = engine_open_load(self._client, orders)
        return summarise(load.records, load.duration_s, SLO)


def _engine(config: EngineConfig, kv_rows: int) -> Callable[[Fit, Front | None], Engine]:
    def engine(fitted: Fit, front: Front | None) -> Engine:
        cost = ByLoad(fitted.cost)
        return Engine(
            make_cost=lambda: cost if front is None else BehindFront(cost, front),
            kv_rows=kv_rows,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )

    return engine


def _fit_figure(fitted: Fit) -> Figure:
    return Figure(
        figure="step times: median error of the fitted cost on steps that it has not seen",
        value=100 * fitted.median_error,
        unit="%",
        bound=f"{fitted.steps} steps; p90 {100 * fitted.p90_error:.0f} %, sum of all {100 * fitted.bias:+.0f} %",
    )


def _front_figure(front: Front) -> Figure:
    return Figure(
        figure="what HTTP adds to a step for each of its answers, fitted to closed loops",
        value=1e3 * front.answer_s,
        unit="ms",
        bound=f"and {1e3 * front.step_s:.2f} ms a step, {1e3 * front.request_s:.2f} ms a request",
    )


def _figures(rows: Sequence[Compared]) -> list[Figure]:
    made: list[Figure] = []
    for way in dict.fromkeys(row.way for row in rows):
        own = [row for row in rows if row.way == way]
        for key in COMPARED:
            ratios = [row.ratio(key) for row in own]
            made.append(
                Figure(
                    figure=f"{way}: simulated over measured {key.removesuffix('_ms')}",
                    value=median(ratios),
                    unit="x",
                    bound="at " + "; ".join(_side_by_side(row, key) for row in own),
                )
            )
        off = [100 * (row.predicted["slo_attainment"] - row.middle("slo_attainment")) for row in own]
        made.append(
            Figure(
                figure=f"{way}: simulated minus measured share of requests within {SLO}, worst load",
                value=max(off, key=abs),
                unit="points",
                bound="at " + "; ".join(_shares(row) for row in own),
            )
        )
    return made


def _side_by_side(row: Compared, key: str) -> str:
    return f"{row.rate:.3g}/s {row.predicted[key]:.2f} for {row.middle(key):.2f} ms{row.spread(key)}"


def _shares(row: Compared) -> str:
    key = "slo_attainment"
    return f"{row.rate:.3g}/s {row.predicted[key]:.2f} for {row.middle(key):.2f}{row.spread(key)}"


def _samples(
    rows: Sequence[Compared], fitted: Fit, profiles: Sequence[StepProfile], loops: Sequence[ClosedLoop]
) -> dict[str, Any]:
    loads = [
        {"way": row.way, "rate": row.rate, "measured": list(row.measured), "simulated": row.predicted} for row in rows
    ]
    return {
        "loads": loads,
        "seconds by feature": dict(zip(FEATURES, fitted.cost.seconds, strict=True)),
        "closed loops": [asdict(loop) for loop in loops],
        "steps, rows and seconds, each time": [
            [(step.load.rows, step.seconds) for step in profile.steps] for profile in profiles
        ],
    }
