"""Serving on this machine as the simulator foretells it, beside what is measured: in process, and over HTTP.

Steps are measured before the loads and after them; a cost is fitted to both, and the same requests at the same times go
through the same scheduler in virtual time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from smoe.bench.result import Figure
from smoe.bench.slo.child import own_server
from smoe.bench.slo.client import Target
from smoe.bench.slo.corpus import MIXED, corpus
from smoe.bench.slo.engine_load import engine_open_load
from smoe.bench.slo.orders import orders_of
from smoe.bench.slo.step_profile import QUICK, Grid, measure_steps
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
from smoe.workload.demand import Demand

SLO = Slo.parse(["ttft:200", "tpot:20", "tbt_p90:40"])
SHARES_OF_LIMIT = (0.5, 0.75, 0.95)
"""Of the rate up to which the simulator says that the objectives are met."""
COMPARED = ("mean_ttft_ms", "p90_ttft_ms", "mean_tpot_ms", "p90_tpot_ms", "mean_tbt_p90_ms", "p90_tbt_p90_ms")
_WARM_UP = 8
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One load; `way` is how it was measured."""

    way: str
    rate: float
    measured: dict[str, Any]
    predicted: dict[str, Any]

    def ratio(self, key: str) -> float:
        return float(self.predicted[key] / self.measured[key])


def predict_and_measure(
    *, quick: bool = False, http: bool = True, config: EngineConfig | None = None, note: Note = lambda _: None
) -> tuple[list[Figure], dict[str, Any]]:
    """The built-in model, unless `config` has another. About three minutes, `quick` one. Figures, and raw samples."""
    config = config or EngineConfig()
    tokenizer = load_tokenizer(model_folder(config.model))
    assert tokenizer is not None, f"{config.model} has no tokenizer"
    text, grid = corpus(MIXED, tokenizer.encode), QUICK if quick else Grid()
    load = Load(Demand(num_requests=40, input_len=128, output_len=32, len_spread=0.5), min_s=4.0 if quick else 10.0)
    note("steps of the engine")
    before = measure_steps(config, text, grid)
    client = build_local_client(config)
    try:
        kv_rows = client.stats().kv_rows_total
        rough = _engine(config, kv_rows, fit(before))
        limit, _ = highest(rough, load, SLO, share=0.99)
        rates = [limit.rate * share for share in SHARES_OF_LIMIT]
        measured = {"in process": [_in_process(client, load.at(rate), text, rate, note) for rate in rates]}
    finally:
        client.shutdown()
    if http:
        measured["over HTTP"] = _over_http(config, load, text, rates, note)
    note("steps of the engine once more")
    after = measure_steps(config, text, grid)
    fitted = fit(replace(before, steps=before.steps + after.steps))
    engine = _engine(config, kv_rows, fitted)
    predicted = [figures(serve_at(engine, load, rate), SLO, rate) for rate in rates]
    rows = [
        Compared(way=way, rate=rate, measured=found, predicted=foretold)
        for way, each in measured.items()
        for rate, found, foretold in zip(rates, each, predicted, strict=True)
    ]
    return [_fit_figure(fitted), *_figures(rows)], _samples(rows, fitted, (before, after))


def _engine(config: EngineConfig, kv_rows: int, fitted: Fit) -> Engine:
    return Engine(
        make_cost=lambda: ByLoad(fitted.cost),
        kv_rows=kv_rows,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )


def _in_process(client: LocalClient, demand: Demand, text: Sequence[int], rate: float, note: Note) -> dict[str, Any]:
    note(f"{rate:.3g} requests a second in process")
    orders = orders_of(demand.plan(rate), text, demand.seed)
    warm_up = [replace(order, request_id=f"warm-{order.request_id}", at_s=0.0) for order in orders[:_WARM_UP]]
    engine_open_load(client, warm_up)
    load = engine_open_load(client, orders)
    return summarise(load.records, load.duration_s, SLO)


def _over_http(
    config: EngineConfig, load: Load, text: Sequence[int], rates: Sequence[float], note: Note
) -> list[dict[str, Any]]:
    limits = (
        "--max-num-seqs",
        str(config.max_num_seqs),
        "--max-num-batched-tokens",
        str(config.max_num_batched_tokens),
    )
    with own_server(["--in-process", "--model", config.model, "--served-model-name", "model", *limits]) as url:
        target = Target(base_url=url, model="model", extra={"ignore_eos": True})
        Study(target=target, demand=load.demand, slo=SLO, text=text).warm_up(_WARM_UP)
        found = []
        for rate in rates:
            note(f"{rate:.3g} requests a second over HTTP")
            study = Study(target=target, demand=load.at(rate), slo=SLO, text=text)
            found += [point.figures for point in study.at(Offered(rate=rate))]
        return found


def _fit_figure(fitted: Fit) -> Figure:
    return Figure(
        figure="step times: median error of the fitted cost on steps that it has not seen",
        value=100 * fitted.median_error,
        unit="%",
        bound=f"{fitted.steps} steps; p90 {100 * fitted.p90_error:.0f} %, sum of all {100 * fitted.bias:+.0f} %",
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
        off = [100 * (row.predicted["slo_attainment"] - row.measured["slo_attainment"]) for row in own]
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
    return f"{row.rate:.3g}/s {row.predicted[key]:.2f} for {row.measured[key]:.2f} ms"


def _shares(row: Compared) -> str:
    return f"{row.rate:.3g}/s {row.predicted['slo_attainment']:.2f} for {row.measured['slo_attainment']:.2f}"


def _samples(rows: Sequence[Compared], fitted: Fit, profiles: Sequence[StepProfile]) -> dict[str, Any]:
    loads = [{"way": row.way, "rate": row.rate, "measured": row.measured, "simulated": row.predicted} for row in rows]
    prices = dict(zip(FEATURES, fitted.cost.seconds, strict=True))
    steps = [[(step.load.rows, step.seconds) for step in profile.steps] for profile in profiles]
    return {"loads": loads, "seconds by feature": prices, "steps, rows and seconds, before and after": steps}
