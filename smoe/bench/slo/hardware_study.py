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
STEP_TOKENS = 2048
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


def study(
    *, quick: bool, out: Path, note: Note = lambda _: None, load: Load | None = None
) -> tuple[list[Figure], dict[str, Any]]:
    """Figures and samples; the picture goes to `out`. Some minutes, `quick` one."""
    load = load or Load(Demand(num_requests=100, trace="azure-conv"), min_s=10.0 if quick else 40.0)
    lengths = load.demand.trace or "made-up lengths"
    made: list[Figure] = []
    panels: list[tuple[str, list[Simulated]]] = []
    for box in BOXES:
        for model, locality in MODELS.items():
            cases = [_case(box, model, *named) for named in _routings(locality)]
            found = _searched(cases, load, f"{model} on {box}", note)
            panels.append((f"{model} on {box}", found))
            made += rate_figures(found, SLO, SHARE, prefix=f"{model} on {box}: ")
    swept = _searched(_over_lar(), load, f"{next(iter(MODELS))} on {BOXES[1]}", note)
    made += rate_figures(swept, SLO, SHARE, prefix=f"{next(iter(MODELS))} on {BOXES[1]}, by LAR: ")
    path = plot_cases(panels, SLO, SHARE, out / "serve-simulated.png", f"{lengths}, {load.min_s:g} s or more")
    note(str(path))
    samples: dict[str, Any] = {name: points_of(found) for name, found in panels}
    samples["by LAR"] = points_of(swept)
    samples["assumed"] = {
        **asdict(Attainable()),
        "max_num_seqs": SEQUENCES,
        "max_num_batched_tokens": STEP_TOKENS,
        "locality": {model: asdict(locality) for model, locality in MODELS.items()},
    }
    return made, samples


def _routings(locality: Locality) -> Iterable[tuple[str, Routing]]:
    yield "allreduce", Routing(schedule="allreduce", lar=1 / 8, imbalance=locality.plain_imbalance)
    yield "scatter", Routing(schedule="scatter", lar=1 / 8, imbalance=locality.plain_imbalance)
    grouped = Routing(schedule="speculative", lar=locality.grouped_lar, imbalance=locality.grouped_imbalance)
    yield f"speculative, LAR {locality.grouped_lar:g}", grouped


def _over_lar() -> list[Case]:
    model, locality = next(iter(MODELS.items()))
    imbalance = locality.grouped_imbalance
    return [
        _case(BOXES[1], model, f"LAR {lar:g}", Routing(schedule="speculative", lar=lar, imbalance=imbalance))
        for lar in SWEPT_LAR
    ]


def _case(box: str, model: str, name: str, routing: Routing) -> Case:
    device = DeviceCost(open_topology(box), open_shape(model), routing)
    cost = ByLoad(device)
    return Case(
        name,
        Engine(
            make_cost=lambda: cost,
            kv_rows=device.kv_rows,
            max_num_seqs=SEQUENCES,
            max_num_batched_tokens=STEP_TOKENS,
        ),
    )


def _searched(cases: Sequence[Case], load: Load, where: str, note: Note) -> list[Simulated]:
    def told(text: str) -> None:
        note(f"{where}: {text}")

    return search(cases, load, SLO, share=SHARE, start=4.0, tolerance=0.05, note=told)
