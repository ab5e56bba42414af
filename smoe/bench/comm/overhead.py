"""What a decode step of the built-in model costs at batch 1 through actors on loopback, by the number of ranks."""

from collections.abc import Callable
from statistics import median

from smoe.bench.decode.builtin import prompts
from smoe.bench.decode.own import run_batch
from smoe.bench.result import Figure, Result
from smoe.core.client import EngineClient
from smoe.core.config import EngineConfig
from smoe.core.parallel import ParallelConfig

OpenClient = Callable[[EngineConfig, bool], EngineClient]
"""From a configuration and whether to use actors, an engine."""
SIZES = (1, 2, 4)


def measure(open_client: OpenClient, *, steps: int, repeats: int, result: Result) -> None:
    """One engine after the other: four ranks need the cores that another would spin on."""
    step_ms: dict[str, list[float]] = {"in process": _step_ms(open_client, 1, False, steps, repeats)}
    for size in SIZES:
        step_ms[f"{size} ranks"] = _step_ms(open_client, size, True, steps, repeats)
    result.samples["loopback_step_ms"] = step_ms
    own = median(step_ms["in process"])
    for size in SIZES:
        times = step_ms[f"{size} ranks"]
        result.add(
            Figure(
                figure=f"loopback, batch 1: step through actors, {size} rank{'s' if size > 1 else ''}",
                value=median(times),
                unit="ms",
                bound=f"in process {own:.2f} ms; spread {min(times):.2f}..{max(times):.2f}",
            )
        )


def _step_ms(open_client: OpenClient, size: int, actors: bool, steps: int, repeats: int) -> list[float]:
    """Means over the steps of an answer; the first answer warms up."""
    parallel = ParallelConfig(tensor_parallel_size=size)
    client = open_client(EngineConfig(threads=1, max_model_len=256, parallel=parallel), actors)
    try:
        ids = prompts(1, 32, client.info().vocab_size, seed=0)
        timings = [run_batch(client, ids, steps) for _ in range(repeats + 1)][1:]
    finally:
        client.shutdown()
    return [1000 * sum(timing.step_s) / (steps - 1) for timing in timings]
