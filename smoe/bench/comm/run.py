"""`smoe bench comm`: schedules and placements on four hosts of one machine, behind shaped links."""

import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from smoe.bench.comm.alpha_beta import Line, predict
from smoe.bench.comm.cases import BASE, BEST, DEDUP, SCATTER, Case, ModelPlan, Work
from smoe.bench.comm.load import latencies_ms, run_load
from smoe.bench.comm.measure import Counted, Series, count, in_turn, probe, rounds
from smoe.bench.comm.namespaces import BURST_S, Network, why_not
from smoe.bench.comm.overhead import OpenClient, measure
from smoe.bench.comm.placements import Routes, decode, prefill
from smoe.bench.comm.plot import plot_growth, plot_speed
from smoe.bench.comm.ranks import Ranks
from smoe.bench.comm.report import add_figures
from smoe.bench.comm.report_model import add_load_figures, add_model_figures
from smoe.bench.comm.size import FULL, QUICK, SLOW_MBIT, Size
from smoe.bench.result import Result
from smoe.core.errors import ConfigError
from smoe.core.placement import Placement
from smoe.metrics.latency import RequestTimes
from smoe.models.inflate import inflate
from smoe.models.loading import open_checkpoint

HIDDEN, EXPERT_FFN = 2048, 96
HOSTS = 4
_FEWER = (2, 1)
_DTYPE_BYTES = 2
SEED = 0


@dataclass(slots=True)
class Measured:
    """`series` by rate, ranks, step and case; `lines` by rate and ranks."""

    series: dict[tuple[int, int, str, str], Series] = field(default_factory=dict)
    lines: dict[tuple[int, int], dict[str, Line]] = field(default_factory=dict)


def run(open_client: OpenClient | None, *, quick: bool, cache: Path, out: Path) -> Result:
    """Takes about a quarter of an hour, `quick` two minutes. `cache` keeps the model (0.6 GB); pictures go to `out`.

    Without `open_client`, which makes engines as smoe.llm does, steps through actors are left out. Raises ConfigError
    where namespaces cannot be made.
    """
    reason = why_not()
    if reason is not None:
        raise ConfigError("bench comm", "hosts as network namespaces", reason)
    size = QUICK if quick else FULL
    bench = _Bench(size, Result(name="comm-quick" if quick else "comm", config=_config(size)), _folder(cache))
    if open_client is not None:
        bench.note("steps through actors on loopback")
        measure(open_client, steps=size.steps, repeats=size.repeats + 1, result=bench.result)
    with Network(HOSTS) as network:
        for ranks in (HOSTS, 2, 1):
            bench.world(network, ranks)
    add_figures(bench.result, bench.found.series, hosts=HOSTS, slow=SLOW_MBIT)
    growth = bench.add_predictions()
    plot_speed(bench.found.series, HOSTS, out / f"{bench.result.name}-speed.png")
    plot_growth(growth, out / f"{bench.result.name}-growth.png")
    return bench.result


class _Bench:
    def __init__(self, size: Size, result: Result, folder: Path) -> None:
        self.size, self.result, self._folder = size, result, folder
        self.found = Measured()
        self._began = time.perf_counter()
        self.note("recording routes")
        self._routes = Routes.recorded(size.texts, SEED)
        self._windows = self._routes.windows(SEED)
        self._fingerprint = open_checkpoint(str(folder)).fingerprint
        self._layers = len(self._routes.fit.layers)

    def note(self, text: str) -> None:
        print(f"comm {time.perf_counter() - self._began:5.0f} s  {text}", file=sys.stderr, flush=True)

    def world(self, network: Network, size: int) -> None:
        """Everything that is measured on `size` ranks."""
        whole = size == HOSTS
        self.note(f"{size} ranks: placements")
        placements = self._routes.placements(size, self._fingerprint, SEED)
        cases: tuple[Case, ...] = self.size.cases if whole else (BASE, DEDUP, SCATTER, BEST) if size > 1 else (SCATTER,)
        contexts, works = self._works(whole)
        kv_rows = max(span[1] + span[2] + len(span[0]) for work in works for span in work.spans)
        with Ranks(size, network) as ranks:
            network.shape(None)
            self.note(f"{size} ranks: loading, counting")
            ranks.join(ModelPlan(folder=str(self._folder), placements=placements, kv_rows=kv_rows), cases)
            for context in contexts:
                ranks.ask("see", SCATTER, context)
            counted = self._count(ranks, placements, cases, works)
            for mbit in self.size.mbit if whole else (SLOW_MBIT,):
                network.shape(mbit)
                self.note(f"{size} ranks at {mbit} Mbit/s")
                if size > 1:
                    self._probe(ranks, mbit)
                series = [Series(case, work, counted[work.name, case.name]) for work in works for case in cases]
                rounds(ranks, series, self._layers, self.size.repeats)
                for each in series:
                    self.found.series[mbit, size, each.work.name, each.case.name] = each
                if whole:
                    self._load(ranks, mbit)

    def add_predictions(self) -> list[dict[str, Any]]:
        """The alpha-beta model against what was measured: of each series, a layer's exchanges."""
        rows: list[dict[str, Any]] = []
        for (mbit, ranks, _, _), series in self.found.series.items():
            lines = self.found.lines.get((mbit, ranks), {})  # one rank has no link
            predicted = predict(lines, series.case, series.counted.formula, ranks)
            rows.append(
                {
                    "mbit": mbit,
                    "ranks": ranks,
                    "phase": series.work.phase,
                    "rows": series.work.rows,
                    "case": series.case.name,
                    "predicted_ms": 1000 * predicted,
                    "measured_ms": 1000 * series.layer_comm_s,
                }
            )
        self.result.samples["growth"] = rows
        add_model_figures(self.result, rows, self.found.lines)
        return rows

    def _works(self, whole: bool) -> tuple[list[Work], list[Work]]:
        """Contexts that decode steps go on from, and the steps."""
        steps = [prefill(self._windows, rows) for rows in (self.size.prefill if whole else self.size.growth)]
        if not whole:
            return [], steps
        # Prompts and sequences that decode do not share rows of the cache, so that contexts are filled in once.
        pairs = [decode(self._windows, rows, first_row=max(self.size.prefill)) for rows in self.size.decode]
        return [max((before for before, _ in pairs), key=lambda work: work.rows)], [
            *steps,
            *(after for _, after in pairs),
        ]

    def _count(
        self, ranks: Ranks, placements: dict[str, Placement], cases: tuple[Case, ...], works: list[Work]
    ) -> dict[tuple[str, str], Counted]:
        return {
            (work.name, case.name): count(ranks, case, work, placements[case.placement], HIDDEN, _DTYPE_BYTES)
            for work in works
            for case in cases
        }

    def _probe(self, ranks: Ranks, mbit: int) -> None:
        lines, points = probe(ranks, self.size.probes)
        self.found.lines[mbit, ranks.size] = lines
        self.result.samples[f"probe, {ranks.size} ranks, {mbit} Mbit/s"] = points

    def _load(self, ranks: Ranks, mbit: int) -> None:
        self.note(f"{ranks.size} ranks at {mbit} Mbit/s: closed load")
        times: dict[str, list[RequestTimes]] = {BASE.name: [], BEST.name: []}
        for number in range(self.size.load.repeats):
            for case in in_turn((BASE, BEST), number):
                times[case.name] += run_load(ranks, case, self._windows, self.size.load)
        found = {name: latencies_ms(each) for name, each in times.items()}
        self.result.samples[f"load, {mbit} Mbit/s"] = {
            name: [asdict(one) for one in each] for name, each in times.items()
        }
        add_load_figures(self.result, found, mbit, self.size.load)


def _folder(cache: Path) -> Path:
    """Makes the wide model with narrow experts once; later runs find it."""
    folder = cache / f"builtin-{HIDDEN}-{EXPERT_FFN}-bf16"
    if not (folder / "config.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        inflate(open_checkpoint("builtin"), folder, hidden=HIDDEN, expert_ffn=EXPERT_FFN, dtype="bfloat16")
    return folder


def _config(size: Size) -> dict[str, object]:
    return {
        "model": f"builtin inflated to hidden {HIDDEN}, expert ffn {EXPERT_FFN}, computed and sent as bf16",
        "hosts": f"{HOSTS} network namespaces, one rank each, one thread a rank",
        "link": "emulated: veth with a token bucket on both ends",
        "bucket_s": BURST_S,
        "seed": SEED,
        **asdict(size),
    }
