"""`smoe bench serve`: serving beside a peer, its overhead, a model larger than its memory, prediction; one run."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

from smoe.bench.decode.bound import inflated_folder
from smoe.bench.result import Figure, Result
from smoe.bench.serve import offloaded, overhead, throughput
from smoe.bench.serve.contenders import smoe_server, transformers_server
from smoe.bench.serve.plot import plot_rates, plot_streams
from smoe.bench.slo import hardware_study
from smoe.bench.slo.client import Order
from smoe.bench.slo.corpus import MIXED, corpus
from smoe.bench.slo.orders import orders_of
from smoe.bench.slo.prediction import predict_and_measure
from smoe.core.config import EngineConfig
from smoe.engine.build import build_local_client
from smoe.engine.tokenizer import load_tokenizer
from smoe.models.loading import model_folder
from smoe.workload.demand import Demand

INPUT_LEN, OUTPUT_LEN = 64, 32
LONG_ANSWER = 64
DIRECT, DEFAULT, PEER = "smoe serve --in-process", "smoe serve (Ray Serve)", "transformers serve"
Note = Callable[[str], None]


def run(*, quick: bool, cache: Path | None, out: Path, note: Note) -> Result:
    """About forty minutes, `quick` four. `cache` keeps the inflated model of 4.9 GB; None leaves its figures out.
    The result is written after each part."""
    folder = model_folder("builtin")
    config: dict[str, object] = {"model": "builtin", "input_len": INPUT_LEN, "output_len": OUTPUT_LEN, "seed": 0}
    result = Result(name="serve-quick" if quick else "serve", config=config)
    bench = _Bench(folder, result, out, note, quick=quick)
    bench.beside_transformers()
    bench.overhead()
    if cache is not None:
        bench.offloaded(inflated_folder(cache))
    bench.prediction()
    bench.other_hardware()
    return result


class _Bench:
    def __init__(self, folder: Path, result: Result, out: Path, note: Note, *, quick: bool) -> None:
        tokenizer = load_tokenizer(folder)
        assert tokenizer is not None, "the built-in model has a tokenizer"
        self._folder, self._result, self._out, self._note, self._quick = folder, result, out, note, quick
        self._decode, self._text = tokenizer.decode, corpus(MIXED, tokenizer.encode)

    def beside_transformers(self) -> None:
        quick = self._quick
        size = (
            throughput.Size(streams=throughput.QUICK_STREAMS, per_stream=2, repeats=1) if quick else throughput.Size()
        )
        self._note("settings of transformers serve")
        setting, rates = throughput.fastest_setting(self._folder, self._as_text)
        self._result.samples["transformers_settings_tokens_per_s"] = rates
        with (
            smoe_server(DIRECT, ["--in-process"]) as direct,
            smoe_server(DEFAULT, [], stops=False) as default,
            transformers_server(PEER, self._folder, setting) as peer,
        ):
            self._note(f"closed loops against {PEER}, {setting}")
            runs = throughput.compare([direct, default, peer], self._as_text, size)
        self._result.samples["streams"] = runs
        self._add(throughput.figures(runs, (DIRECT, DEFAULT), PEER))
        vllm = "installed, not driven" if importlib.util.find_spec("vllm") else "not installed"
        self._result.config.update({"transformers_setting": setting, "vllm": vllm})
        plot_streams(runs, self._out / f"{self._result.name}-streams.png", "Built-in model, closed loop, same client")

    def overhead(self) -> None:
        self._note("overhead of serving")
        repeats = 2 if self._quick else 15
        client = build_local_client(EngineConfig(threads=overhead.THREADS))
        try:
            threads = ["--threads", str(overhead.THREADS)]
            with (
                smoe_server(DIRECT, ["--in-process", *threads]) as direct,
                smoe_server(DEFAULT, threads, stops=False) as default,
            ):
                servers = {overhead.IN_PROCESS: direct, overhead.RAY_SERVE: default}
                found = overhead.measure(servers, client, self._as_ids, repeats=repeats, tokens=LONG_ANSWER)
        finally:
            client.shutdown()
        figures, samples = overhead.figures(found, repeats)
        self._result.samples["overhead"] = samples
        self._add(figures)

    def offloaded(self, folder: Path) -> None:
        plan = offloaded.QUICK_PLAN if self._quick else offloaded.PLAN
        requests, most = (4, 2) if self._quick else (16, 4)
        found = [
            offloaded.search(folder, memory, method, self._text, requests=requests, most=most, note=self._note)
            for memory, methods in plan.items()
            for method in methods
        ]
        self._result.samples["offloaded"] = [
            {"memory": each.memory, "method": each.method, "why": each.why, "points": each.points} for each in found
        ]
        self._add(offloaded.figures(found))
        path = self._out / f"{self._result.name}-offloaded.png"
        plot_rates(found, path, "4.9 GB model, experts on disk: the highest rate within an SLO")

    def prediction(self) -> None:
        figures, samples = predict_and_measure(quick=self._quick, note=self._note)
        self._result.samples["prediction"] = samples
        self._add(figures)

    def other_hardware(self) -> None:
        """Simulated, and every figure says so."""
        figures, samples = hardware_study.study(quick=self._quick, out=self._out, note=self._note)
        self._result.samples["hardware_study"] = samples
        self._add(figures)

    def _add(self, figures: Sequence[Figure]) -> None:
        for figure in figures:
            self._result.add(figure)
        self._result.write(self._out)

    def _as_text(self, count: int, seed: int) -> list[Order]:
        return self._orders(count, OUTPUT_LEN, seed, as_text=True)

    def _as_ids(self, count: int, tokens: int, seed: int) -> list[Order]:
        return self._orders(count, tokens, seed, as_text=False)

    def _orders(self, count: int, tokens: int, seed: int, *, as_text: bool) -> list[Order]:
        """Text for whoever takes no token ids; the same text for all."""
        demand = Demand(num_requests=count, input_len=INPUT_LEN, output_len=tokens, seed=seed)
        return orders_of(demand.requests(), self._text, seed, decode=self._decode if as_text else None)
