"""Two boxes of eight devices and two models that nobody has here: how many requests a second each schedule of exchanges
would serve within limits. Simulated from data sheets, formulas of exchanges and local activation rates that were
measured on other models; nothing of it is a measurement."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from smoe.bench.result import Figure
from smoe.bench.slo.cases import Case, Simulated, plot_cases, points_of, rate_figures, search
from smoe.core.topology_file import open_topology
from smoe.metrics.slo import Slo
from smoe.sim.serving.cost import ByLoad
from smoe.sim.serving.curve import Engine, Load
from smoe.sim.serving.devices import Attainable, DeviceCost, Routing
from smoe.sim.serving.shape import open_shape
from smoe.workload.demand import Demand

SLO = Slo.parse(["ttft:500", "tpot:50", "tbt_p90:100"])
SHARE = 0.99
BOXES = ("8xh100-nvlink", "8xh100-pcie")
SEQUENCES = 512
CHUNKS = (1024, 2048)
"""Tokens of a step at most. A schedule gets what suits it best: short steps keep gaps short, long ones are faster."""
SWEPT_LAR = (0.125, 0.25, 0.5, 0.625)
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Locality:
    """Of one model on eight devices: `plain` with experts in their order, `grouped` as the offline job places them."""

    plain_imbalance: float
    grouped_lar: float
    grouped_imbalance: float
    source: str


MODELS = {
    "deepseek-v2": Locality(
        plain_imbalance=1.35,
        grouped_lar=0.38,
        grouped_imbalance=1.40,
        source="recorded by bench regroup. LAR: gpt-oss-20b on 8 devices, held-out, load up to 1.35 when fitted, "
        "0.454, times what equal chunks leave of it on 4 (0.538 of 0.643). Imbalance: the same; plain: "
        "DeepSeek-V2-Lite",
    ),
    "mixtral-8x7b": Locality(
        plain_imbalance=1.35,
        grouped_lar=0.16,
        grouped_imbalance=1.35,
        source="one expert a device leaves nothing to group: 1/8 times what tables alone gain on gpt-oss-20b and 4 "
        "devices (0.383 for 0.250), times what equal chunks leave (0.538 of 0.643); imbalance as of deepseek-v2, plain",
    ),
}


def study(*, quick: bool, out: Path, note: Note = lambda _: None) -> tuple[list[Figure], dict[str, Any]]:
    """Figures and samples; the picture goes to `out`. Some minutes, `quick` one."""
    demand = Demand(num_requests=100, trace="azure-conv")
    load = Load(demand, min_s=4.0 if quick else 10.0)
    chunks = CHUNKS[-1:] if quick else CHUNKS
    made: list[Figure] = []
    panels: list[tuple[str, list[Simulated]]] = []
    for box in BOXES:
        for model, locality in MODELS.items():
            found = [_best(box, model, routing, load, chunks, note) for routing in _routings(locality)]
            panels.append((f"{model} on {box}", found))
            made += rate_figures(found, SLO, SHARE, prefix=f"{model} on {box}: ")
    swept = _over_lar(load, chunks, note)
    made += rate_figures(swept, SLO, SHARE, prefix=f"{next(iter(MODELS))} on {BOXES[1]}, by LAR: ")
    path = plot_cases(
        panels, SLO, SHARE, out / "serve-simulated.png", f"requests of azure-conv for {load.min_s:g} s or more"
    )
    note(str(path))
    samples: dict[str, Any] = {name: points_of(found) for name, found in panels}
    samples["by LAR"] = points_of(swept)
    samples["assumed"] = {
        **asdict(Attainable()),
        "max_num_seqs": SEQUENCES,
        "tokens a step, the best of": chunks,
        "locality": {model: asdict(locality) for model, locality in MODELS.items()},
    }
    return made, samples


def _routings(locality: Locality) -> Iterable[tuple[str, Routing]]:
    yield "allreduce", Routing(schedule="allreduce", lar=1 / 8, imbalance=locality.plain_imbalance)
    yield "scatter", Routing(schedule="scatter", lar=1 / 8, imbalance=locality.plain_imbalance)
    grouped = Routing(schedule="speculative", lar=locality.grouped_lar, imbalance=locality.grouped_imbalance)
    yield f"speculative, LAR {locality.grouped_lar:g}", grouped


def _over_lar(load: Load, chunks: Sequence[int], note: Note) -> list[Simulated]:
    model, locality = next(iter(MODELS.items()))
    return [
        _best(
            BOXES[1],
            model,
            (
                f"speculative, LAR {lar:g}",
                Routing(schedule="speculative", lar=lar, imbalance=locality.grouped_imbalance),
            ),
            load,
            chunks,
            note,
        )
        for lar in SWEPT_LAR
    ]


def _best(box: str, model: str, named: tuple[str, Routing], load: Load, chunks: Sequence[int], note: Note) -> Simulated:
    """With the chunk that serves most."""
    name, routing = named
    device = DeviceCost(open_topology(box), open_shape(model), routing)
    cost = ByLoad(device)

    def case(chunk: int) -> Case:
        limits = {"kv_rows": device.kv_rows, "max_num_seqs": SEQUENCES, "max_num_batched_tokens": chunk}
        return Case(f"{name}, {chunk} tokens a step", Engine(make_cost=lambda: cost, **limits))

    cases = [case(chunk) for chunk in chunks]
    found = search(
        cases, load, SLO, share=SHARE, start=4.0, tolerance=0.05, note=lambda text: note(f"{model} on {box}: {text}")
    )
    return max(found, key=lambda one: one.rate or 0.0)
