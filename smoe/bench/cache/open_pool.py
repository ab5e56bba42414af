"""SpecMD's own rules (spec P5), under which collisions happen: one pool of any size, no floors, no pins, no flights.

The runtime's Residency keeps what a pass is about to use: transfers in flight are no victims, and the hits of a pass
are pinned before its misses take slots. So there an expert fetched ahead cannot be lost before its layer. Here it can:
every fetch is done at once, and takes the slot that the eviction policy names. The policy objects are the same.
"""

from typing import Any

import numpy as np

from smoe.core.route_trace import RouteTrace
from smoe.core.stats import ExpertStats
from smoe.offload.policies.catalog import Geometry
from smoe.offload.policies.future import Future
from smoe.offload.policies.protocols import Key, PolicySet, Reason, Routing
from smoe.offload.policies.spec import PolicySpec
from smoe.sim.forwards import Mode, Span, forwards


class OpenPool:
    """`num_slots` >= 1. A pass serves its demand in ascending expert order, then fetches what prefetch names."""

    def __init__(self, num_slots: int, policies: PolicySet, layers: tuple[int, ...]) -> None:
        self._num_slots, self._policies, self._layers = num_slots, policies, layers
        self._next_layer = dict(zip(layers, [*layers[1:], layers[0]], strict=True))
        self._resident: set[Key] = set()
        self._unused: set[Key] = set()
        self._brought: set[Key] = set()
        self._using: Key | None = None
        self.hits = self.cold = self.collisions = self.prefetched = self.wasted = self.transfers = self.evictions = 0

    def begin_forward(self) -> None:
        self._brought.clear()
        self._policies.eviction.begin_epoch()

    def layer(self, routing: Routing, lookahead: Any) -> None:
        eviction, prefetch, layer = self._policies.eviction, self._policies.prefetch, routing.layer
        eviction.begin_layer(layer)
        eviction.demand(routing)
        if prefetch is not None:
            prefetch.observe(routing)
        for expert in sorted(set(routing.ids.ravel().tolist())):
            self._demand((layer, expert))
        self._using = None
        if prefetch is None or (prefetch.needs_lookahead and layer == self._layers[-1]):
            return
        for key in prefetch.plan(routing, self._next_layer[layer], lookahead):
            if key in self._resident:
                eviction.confirm(key[0], [key[1]])
            elif self._fetch(key, Reason.PREFETCH):
                self.prefetched += 1
                self._unused.add(key)

    def stats(self) -> ExpertStats:
        return ExpertStats(
            hits=self.hits,
            cold_misses=self.cold,
            collision_misses=self.collisions,
            prefetched=self.prefetched,
            wasted=self.wasted,
            evictions=self.evictions,
        )

    def _demand(self, key: Key) -> None:
        self._using = key
        if key in self._resident:
            self.hits += 1
            self._unused.discard(key)
            self._policies.eviction.touch(key[0], [key[1]])
            return
        if key in self._brought:
            self.collisions += 1
        else:
            self.cold += 1
        self._fetch(key, Reason.DEMAND)

    def _fetch(self, key: Key, reason: Reason) -> bool:
        """Whether it got a slot; a demand that the policy refuses one passes through without."""
        eviction = self._policies.eviction
        if len(self._resident) >= self._num_slots:
            victim = eviction.victim(self._layers, self._evictable, key, reason)
            if victim is None:
                self.transfers += reason is Reason.DEMAND
                return False
            self._resident.remove(victim)
            self.wasted += victim in self._unused
            self._unused.discard(victim)
            self.evictions += 1
            eviction.forget(*victim)
        self.transfers += 1
        self._resident.add(key)
        self._brought.add(key)
        eviction.admit(*key, reason)
        return True

    def _evictable(self, layer: int, expert: int) -> bool:
        key = (layer, expert)
        return key in self._resident and key != self._using


def replay_open(trace: RouteTrace, spec: PolicySpec, num_slots: int, *, mode: Mode, seed: int = 0) -> OpenPool:
    """The whole trace from an empty pool."""
    steps = list(forwards(trace, mode, 1))
    geometry = Geometry(layers=trace.layers, num_experts=trace.num_experts, top_k=trace.top_k)
    future = _future(trace, steps) if spec.needs_future else None
    pool = OpenPool(num_slots, spec.build(geometry, seed=seed, future=future), trace.layers)
    ids = trace.expert_ids.astype(np.int32)
    weights = None if trace.expert_weights is None else trace.expert_weights.astype(np.float32)
    lookahead = trace.lookahead_logits
    for spans in steps:
        rows = slice(*spans[0])
        pool.begin_forward()
        for index, layer in enumerate(trace.layers):
            routing = Routing(
                layer=layer,
                ids=ids[index, rows],
                weights=None if weights is None else weights[index, rows],
                token_ids=trace.token_ids[rows],
            )
            pool.layer(routing, None if lookahead is None else lookahead[index, rows])
    return pool


def _future(trace: RouteTrace, steps: list[tuple[Span, ...]]) -> Future:
    return Future.of(
        (layer, trace.expert_ids[index, slice(*spans[0])].ravel().tolist())
        for spans in steps
        for index, layer in enumerate(trace.layers)
    )
