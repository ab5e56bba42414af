"""The passes of a trace as simulations take them, made a block at a time, once for all that run side by side."""

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from smoe.core.route_trace import Array, RouteTrace
from smoe.offload.distinct import distinct
from smoe.offload.policies.future import Future
from smoe.offload.policies.protocols import Routing
from smoe.sim.forwards import Mode, forwards

BLOCK = 64
"""Forwards. Enough for numpy to pay; a block of what is made here is some megabytes."""


class Pass(NamedTuple):
    """One layer of one forward: distinct `experts`, ascending. `routing` and `lookahead` where they were asked for."""

    layer: int
    experts: list[int]
    routing: Routing | None
    lookahead: Array | None


Forward = list[Pass]


def blocks(
    trace: RouteTrace, mode: Mode, batch: int, *, routing: bool, lookahead: bool
) -> Iterator[tuple[int, list[Forward]]]:
    """All forwards in order, with the tokens that they take. `lookahead` is None after the last layer, and where the
    trace has none."""
    steps = forwards(trace, mode, batch)
    nothing: list[None] = [None] * len(trace.layers)
    while some := list(islice(steps, BLOCK)):
        rows = np.concatenate([np.arange(*span) for spans in some for span in spans])
        starts = np.cumsum([0, *(sum(end - start for start, end in spans) for spans in some)]).tolist()
        ids = trace.expert_ids[:, rows].astype(np.int32)
        experts = _experts(ids, starts)
        routings: Sequence[Sequence[Routing | None]]
        ahead: Sequence[Sequence[Array | None]]
        routings = _routings(trace, rows, ids, starts) if routing else [nothing] * len(some)
        ahead = _lookahead(trace, rows, starts) if lookahead else [nothing] * len(some)
        made: list[Forward] = [
            list(map(Pass, trace.layers, of_each, routing_each, ahead_each))
            for of_each, routing_each, ahead_each in zip(experts, routings, ahead, strict=True)
        ]
        yield len(rows), made


def future(trace: RouteTrace, mode: Mode, batch: int) -> Future:
    """What all the passes demand."""
    layers, counts, experts = list[int](), list[int](), list[int]()
    for _, block in blocks(trace, mode, batch, routing=False, lookahead=False):
        for forward in block:
            for layer, demanded, *_ in forward:
                layers.append(layer)
                counts.append(len(demanded))
                experts += demanded
    return Future(np.array(layers), np.cumsum([0, *counts]), np.array(experts))


def _experts(ids: Array, starts: list[int]) -> list[list[list[int]]]:
    """By forward and layer."""
    if len(starts) == ids.shape[1] + 1:
        lists: list[list[list[int]]] = np.sort(ids, axis=-1).transpose(1, 0, 2).tolist()
        return lists
    return [[distinct(layer[a:b]) for layer in ids] for a, b in pairwise(starts)]


def _routings(trace: RouteTrace, rows: Array, ids: Array, starts: list[int]) -> list[list[Routing]]:
    weights = None if trace.expert_weights is None else trace.expert_weights[:, rows].astype(np.float32)
    token_ids = trace.token_ids[rows]
    return [
        [
            Routing(
                layer=layer,
                ids=ids[index, a:b],
                weights=None if weights is None else weights[index, a:b],
                token_ids=token_ids[a:b],
            )
            for index, layer in enumerate(trace.layers)
        ]
        for a, b in pairwise(starts)
    ]


def _lookahead(trace: RouteTrace, rows: Array, starts: list[int]) -> list[list[Array | None]]:
    logits = trace.lookahead_logits
    if logits is None:
        return [[None] * len(trace.layers)] * (len(starts) - 1)
    taken = logits[:, rows].astype(np.float16)
    return [[*(taken[index, a:b] for index in range(len(taken) - 1)), None] for a, b in pairwise(starts)]
