"""What HTTP adds to an engine's steps, measured: the same closed loops over a server and straight through an engine."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from smoe.bench.slo.child import own_server
from smoe.bench.slo.client import Load, Order, Target, closed_loop
from smoe.bench.slo.engine_load import engine_load
from smoe.bench.slo.orders import orders_of
from smoe.core.client import EngineClient
from smoe.core.config import EngineConfig
from smoe.engine.build import build_local_client
from smoe.sim.serving.front import ClosedLoop, Pair
from smoe.workload.demand import Demand

SERVED_NAME = "model"
_NAME = "front"
Run = Callable[[Sequence[Order], int], Load]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """For each number of streams: one answer of `tokens` tokens each; then at least `requests`, and two a stream, that
    have one token. `repeats` of all."""

    streams: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    tokens: int = 48
    requests: int = 16
    prompt: int = 64
    repeats: int = 3


QUICK_LOOPS = Loops(streams=(1, 8, 32), tokens=24, requests=8, repeats=2)


@contextmanager
def front_of(config: EngineConfig) -> Iterator[Target]:
    """A server of this package's that has such an engine in its own process. Raises StartupError."""
    flags = {
        "--model": config.model,
        "--dtype": config.dtype,
        "--threads": config.threads,
        "--max-num-seqs": config.max_num_seqs,
        "--max-num-batched-tokens": config.max_num_batched_tokens,
        "--served-model-name": SERVED_NAME,
    }
    given = [part for name, value in flags.items() if value is not None for part in (name, str(value))]
    with own_server(["--in-process", *given]) as url:
        yield Target(base_url=url, model=SERVED_NAME, extra={"ignore_eos": True})


def measure_front(target: Target, client: EngineClient, text: Sequence[int], loops: Loops) -> tuple[ClosedLoop, ...]:
    """In turns, each way first in every other repeat, after loops of most streams that warm up. Both engines are alike
    and nobody else's. Raises StartupError."""
    ways: dict[str, Run] = {
        "over": lambda orders, streams: asyncio.run(closed_loop(target, orders, streams)),
        "straight": lambda orders, streams: engine_load(client, orders, streams),
    }
    most = max(loops.streams)
    for run in ways.values():
        run(_orders(text, 2 * most, 2, loops.prompt, loops.repeats), most).whole(_NAME)
    found = []
    for repeat in range(loops.repeats):
        turns = sorted(ways, reverse=bool(repeat % 2))
        for streams in loops.streams:
            long = _orders(text, streams, loops.tokens, loops.prompt, repeat)
            short = _orders(text, max(loops.requests, 2 * streams), 1, loops.prompt, repeat)
            token_s = {way: ways[way](long, streams).whole(_NAME).median_tpot_s for way in turns}
            request_s = {way: ways[way](short, streams).whole(_NAME).duration_s / len(short) for way in turns}
            found.append(ClosedLoop(streams=streams, token_s=Pair(**token_s), request_s=Pair(**request_s)))
    return tuple(found)


def measure_front_of(config: EngineConfig, text: Sequence[int], loops: Loops) -> tuple[ClosedLoop, ...]:
    """With a server and an engine of its own. Raises as `build_local_client` does, and StartupError."""
    client = build_local_client(config)
    try:
        with front_of(config) as target:
            return measure_front(target, client, text, loops)
    finally:
        client.shutdown()


def _orders(text: Sequence[int], count: int, tokens: int, prompt: int, seed: int) -> list[Order]:
    demand = Demand(num_requests=count, input_len=prompt, output_len=tokens, seed=seed)
    return orders_of(demand.requests(), text, seed)
