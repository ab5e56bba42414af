"""`smoe bench throughput`: tokens a second of an engine without a server, with so many requests in flight."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from smoe.bench.result import Figure, Result
from smoe.bench.slo.engine_load import engine_load
from smoe.bench.slo.orders import orders_of
from smoe.core.client import EngineClient
from smoe.metrics.slo import Slo, summarise
from smoe.workload.plan import made_up

NAME = "throughput"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Each of `sizes` requests in flight at a time, until `rounds` times as many are answered; all that `repeats`
    times, in turn, after one run of each that does not count."""

    sizes: Sequence[int]
    input_len: int
    output_len: int
    rounds: int
    repeats: int
    seed: int


def run(
    client: EngineClient,
    batches: Batches,
    text: Sequence[int],
    config: Mapping[str, object],
    on_run: Callable[[], None],
) -> Result:
    """Prompts are cut from `text`, answers go on to their length. Raises RuntimeError when an answer fails."""
    runs: dict[int, list[dict[str, Any]]] = {size: [] for size in batches.sizes}
    for repeat in range(-1, batches.repeats):
        for size in batches.sizes:
            figures = _run(client, batches, text, size, repeat)
            if repeat >= 0:
                runs[size].append(figures)
            on_run()
    result = Result(name=NAME, config=dict(config))
    for size, figures_of in runs.items():
        for key, name, unit in (
            ("output_throughput", "generated", "tokens/s"),
            ("total_token_throughput", "prompts and answers", "tokens/s"),
            ("median_tpot_ms", "time per output token, median", "ms"),
        ):
            values = [figures[key] for figures in figures_of]
            spread = (min(values), max(values)) if len(values) > 1 else None
            result.add(Figure(figure=f"{name}, batch {size}", value=median(values), unit=unit, spread=spread))
    result.samples["runs"] = [{"batch": size, **figures} for size, figures_of in runs.items() for figures in figures_of]
    return result


def _run(client: EngineClient, batches: Batches, text: Sequence[int], size: int, repeat: int) -> dict[str, Any]:
    seed = batches.seed + repeat + 1
    plan = made_up(size * batches.rounds, input_len=batches.input_len, output_len=batches.output_len, seed=seed)
    load = engine_load(client, orders_of(plan, text, seed), size)
    failed = next((record.error for record in load.records if record.failed), None)
    if failed is not None:
        raise RuntimeError(f"batch {size}: an answer failed: {failed}")
    return summarise(load.records, load.duration_s, Slo())
