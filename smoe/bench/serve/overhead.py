"""What serving adds to the model: the same requests over HTTP and straight through an engine, in turns.

A request costs what the server needs longer for one-token answers with 16 in flight, divided by their number; a token
costs what it is later in long answers of 16 streams, and what an engine's step takes beside the model's arithmetic.
Engines compute on one thread here, so that the client has a core of its own.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from smoe.bench.decode.overhead import core_without_arithmetic, ms_per_step
from smoe.bench.result import Figure
from smoe.bench.serve.contenders import Contender
from smoe.bench.serve.throughput import AT
from smoe.bench.slo.client import Load, Order, closed_loop
from smoe.bench.slo.engine_load import engine_load
from smoe.core.client import EngineClient
from smoe.core.errors import StartupError
from smoe.metrics.latency import tpot_s

GOAL_REQUEST_MS, GOAL_TOKEN_MS = 5.0, 1.0
THREADS = 1
Orders = Callable[[int, int, int], list[Order]]
"""(how many, tokens of each answer, seed) -> requests with token ids as prompts."""


@dataclass(slots=True)
class Ways:
    """Milliseconds by way, `http` and `engine`, one entry a repeat: of a one-token request, of a token of a stream."""

    request_ms: dict[str, list[float]] = field(default_factory=lambda: {"http": [], "engine": []})
    token_ms: dict[str, list[float]] = field(default_factory=lambda: {"http": [], "engine": []})

    def difference(self, ms: dict[str, list[float]]) -> list[float]:
        return [over - plain for over, plain in zip(ms["http"], ms["engine"], strict=True)]


def measure(server: Contender, client: EngineClient, orders: Orders, *, repeats: int, tokens: int) -> Ways:
    """`client` computes on as many threads as `server`."""
    target = replace(server.target, extra={"ignore_eos": True})

    def over_http(batch: Sequence[Order]) -> Load:
        with server.turn():
            return asyncio.run(closed_loop(target, batch, AT))

    def straight(batch: Sequence[Order]) -> Load:
        return engine_load(client, batch, AT)

    ways = {"http": over_http, "engine": straight}
    found = Ways()
    for repeat in range(repeats + 1):
        short, long = orders(8 * AT, 1, repeat), orders(2 * AT, tokens, repeat)
        for name in ("http", "engine") if repeat % 2 else ("engine", "http"):
            one, many = _whole(ways[name](short)), _whole(ways[name](long))
            if repeat:  # the first warms up
                found.request_ms[name].append(one.duration_s / len(short) * 1e3)
                found.token_ms[name].append(median(tpot_s(record.times) or 0.0 for record in many.records) * 1e3)
    return found


def figures(found: Ways, repeats: int) -> tuple[list[Figure], dict[str, Any]]:
    core = core_without_arithmetic()
    steps = [ms_per_step(core, AT) for _ in range(repeats + 1)][1:]
    requests, tokens = found.difference(found.request_ms), found.difference(found.token_ms)
    request, token, step = median(requests), median(tokens), median(steps)
    over = found.token_ms
    return [
        Figure(
            figure=f"server overhead a request, {AT} at once",
            value=request,
            unit="ms",
            goal=f"< {GOAL_REQUEST_MS:g} ms",
            met=request < GOAL_REQUEST_MS,
            bound="one-token answers over HTTP less the same through EngineClient, by their number",
            spread=(min(requests), max(requests)),
        ),
        Figure(
            figure=f"server overhead a token, {AT} streams",
            value=token + step,
            unit="ms",
            goal=f"< {GOAL_TOKEN_MS:g} ms",
            met=token + step < GOAL_TOKEN_MS,
            bound=f"HTTP {median(over['http']):.2f} less engine {median(over['engine']):.2f} ms, each stream's, "
            f"plus {step:.2f} ms of a step that is not the model's arithmetic",
            spread=(min(tokens) + step, max(tokens) + step),
        ),
    ], {"request_ms": found.request_ms, "token_ms": found.token_ms, "step_without_arithmetic_ms": steps}


def _whole(load: Load) -> Load:
    if failed := [record.error for record in load.records if record.failed]:
        raise StartupError(f"overhead: {len(failed)} of {len(load.records)} requests failed: {failed[0]}")
    return load
