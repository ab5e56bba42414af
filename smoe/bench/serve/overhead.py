"""What serving adds to the model: the same requests over HTTP and straight through an engine, in turns.

A request costs what the server needs longer for one-token answers with 16 in flight, divided by their number; a token
costs what it is later in long answers of 16 streams, and what an engine's step takes beside the model's arithmetic.
Engines compute on one thread here, so that the client has a core of its own. A server by Ray Serve is several processes
that run on while the others have their turn.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

from smoe.bench.decode.overhead import core_without_arithmetic, ms_per_step
from smoe.bench.result import Figure
from smoe.bench.serve.contenders import Contender
from smoe.bench.serve.throughput import AT
from smoe.bench.slo.client import Load, Order, closed_loop
from smoe.bench.slo.engine_load import engine_load
from smoe.core.client import EngineClient

GOAL_REQUEST_MS, GOAL_TOKEN_MS = 5.0, 1.0
THREADS = 1
Orders = Callable[[int, int, int], list[Order]]
"""(how many, tokens of each answer, seed) -> requests with token ids as prompts."""


ENGINE, IN_PROCESS, RAY_SERVE = "engine", "http", "ray-serve"
NAMES = {IN_PROCESS: "server", RAY_SERVE: "Ray Serve"}
"""Of servers, in the names of figures."""


@dataclass(slots=True)
class Ways:
    """Milliseconds by way, one entry a repeat: of a one-token request, of a token of a stream."""

    request_ms: dict[str, list[float]] = field(default_factory=dict)
    token_ms: dict[str, list[float]] = field(default_factory=dict)

    def difference(self, ms: Mapping[str, Sequence[float]], way: str) -> list[float]:
        return [over - plain for over, plain in zip(ms[way], ms[ENGINE], strict=True)]


def measure(
    servers: Mapping[str, Contender], client: EngineClient, orders: Orders, *, repeats: int, tokens: int
) -> Ways:
    """`client` computes on as many threads as `servers`, which are by way."""
    ways: dict[str, Callable[[Sequence[Order]], Load]] = {ENGINE: lambda batch: engine_load(client, batch, AT)}
    ways |= {name: partial(_over_http, server) for name, server in servers.items()}
    found = Ways({name: [] for name in ways}, {name: [] for name in ways})
    for repeat in range(repeats + 1):
        short, long = orders(8 * AT, 1, repeat), orders(2 * AT, tokens, repeat)
        for name in list(ways)[:: -1 if repeat % 2 else 1]:
            one, many = (ways[name](batch).whole("overhead") for batch in (short, long))
            if repeat:  # the first warms up
                found.request_ms[name].append(one.duration_s / len(short) * 1e3)
                found.token_ms[name].append(many.median_tpot_s * 1e3)
    return found


def figures(found: Ways, repeats: int) -> tuple[list[Figure], dict[str, Any]]:
    core = core_without_arithmetic()
    steps = [ms_per_step(core, AT) for _ in range(repeats + 1)][1:]
    made = [
        figure
        for way, name in NAMES.items()
        for figure in (_of_a_request(found, way, name), _of_a_token(found, way, name, median(steps)))
    ]
    samples = {"request_ms": found.request_ms, "token_ms": found.token_ms, "step_without_arithmetic_ms": steps}
    return made, samples


def _of_a_request(found: Ways, way: str, name: str) -> Figure:
    bound = "one-token answers over HTTP less the same through EngineClient, by their number"
    what = f"{name} overhead a request, {AT} at once"
    return _figure(what, found.difference(found.request_ms, way), GOAL_REQUEST_MS, bound)


def _of_a_token(found: Ways, way: str, name: str, step_ms: float) -> Figure:
    http, engine = (median(found.token_ms[each]) for each in (way, ENGINE))
    bound = (
        f"HTTP {http:.2f} less engine {engine:.2f} ms, each stream's, "
        f"plus {step_ms:.2f} ms of a step that is not the model's arithmetic"
    )
    more = [each + step_ms for each in found.difference(found.token_ms, way)]
    return _figure(f"{name} overhead a token, {AT} streams", more, GOAL_TOKEN_MS, bound)


def _figure(name: str, ms: Sequence[float], goal_ms: float, bound: str) -> Figure:
    value = median(ms)
    return Figure(
        figure=name,
        value=value,
        unit="ms",
        goal=f"< {goal_ms:g} ms",
        met=value < goal_ms,
        bound=bound,
        spread=(min(ms), max(ms)),
    )


def _over_http(server: Contender, batch: Sequence[Order]) -> Load:
    target = replace(server.target, extra={"ignore_eos": True})
    with server.turn():
        return asyncio.run(closed_loop(target, batch, AT))
