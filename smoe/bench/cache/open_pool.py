"""SpecMD's own rules (spec P5), under which collisions happen: one pool of any size, no floors, no pins, no flights.

The runtime's Residency keeps what a pass is about to use: transfers in flight are no victims, and the hits of a pass
are pinned before its misses take slots. So there an expert fetched ahead cannot be lost before its layer. Here it can:
every fetch is done at once, and takes the slot that the eviction policy names. The policy objects are the same.
"""

from collections.abc import Sequence

from smoe.core.stats import ExpertStats
from smoe.offload.policies.protocols import Array, Key, PolicySet, Reason, Routing
from smoe.sim.instant import hears_demand, short


class OpenPool:
    """`num_slots` >= 1. A pass serves its demand in ascending expert order, then fetches what prefetch names."""

    def __init__(self, num_slots: int, policies: PolicySet, layers: tuple[int, ...]) -> None:
        self._num_slots, self._layers = num_slots, short(layers)
        self._eviction, self._prefetch = policies.eviction, policies.prefetch
        self._evictable = self._may_go
        self._next_layer = dict(zip(layers, [*layers[1:], layers[0]], strict=True))
        self._resident: set[Key] = set()
        self._unused: set[Key] = set()
        self._brought: set[Key] = set()
        self._using: Key | None = None
        self.needs_routing = policies.prefetch is not None or hears_demand(policies.eviction)
        self.needs_lookahead = policies.prefetch is not None and policies.prefetch.needs_lookahead
        self.hits = self.cold = self.collisions = self.prefetched = self.wasted = self.transfers = self.evictions = 0
        self.peak_used = 0

    def begin_forward(self) -> None:
        self._brought.clear()
        self._eviction.begin_epoch()

    def run_layer(
        self, layer: int, experts: Sequence[int], routing: Routing | None = None, lookahead: Array | None = None
    ) -> None:
        """A pass over distinct, ascending `experts`. `lookahead` None where there is none."""
        eviction, prefetch, resident = self._eviction, self._prefetch, self._resident
        eviction.begin_layer(layer)
        if self.needs_routing:
            assert routing is not None
            eviction.demand(routing)
            if prefetch is not None:
                prefetch.observe(routing)
        for expert in experts:
            self._using = key = (layer, expert)
            if key in resident:
                self.hits += 1
                self._unused.discard(key)
                eviction.touch(layer, (expert,))
                continue
            if key in self._brought:
                self.collisions += 1
            else:
                self.cold += 1
            self._fetch(key, Reason.DEMAND)
        self._using = None
        if prefetch is None:
            return
        assert routing is not None
        for key in prefetch.plan(routing, self._next_layer[layer], lookahead):
            if key in resident:
                eviction.confirm(key[0], (key[1],))
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

    def check_integrity(self) -> None:
        """Raises RuntimeError where more is held than there are slots."""
        if len(self._resident) > self._num_slots:
            raise RuntimeError(f"open pool: {len(self._resident)} experts in {self._num_slots} slots")

    def _fetch(self, key: Key, reason: Reason) -> bool:
        """Whether it got a slot; a demand that the policy refuses one passes through without."""
        resident, eviction = self._resident, self._eviction
        if len(resident) >= self._num_slots:
            victim = eviction.victim(self._layers, self._evictable, key, reason)
            if victim is None:
                self.transfers += reason is Reason.DEMAND
                return False
            resident.remove(victim)
            if victim in self._unused:
                self._unused.remove(victim)
                self.wasted += 1
            self.evictions += 1
            eviction.forget(*victim)
        self.transfers += 1
        resident.add(key)
        self.peak_used = max(self.peak_used, len(resident))
        self._brought.add(key)
        eviction.admit(*key, reason)
        return True

    def _may_go(self, layer: int, expert: int) -> bool:
        key = (layer, expert)
        return key != self._using and key in self._resident
