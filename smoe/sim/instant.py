"""A whole forward's decisions in one go, for transfers that take no time. Torch-free.

What Planner, Residency and LayerPass come to, step by step, when every transfer has arrived before anybody looks again:
the same calls of the policies in the same order, hence the same victims and counts. Those steps would be most of a
simulation's time. Misses are fetched, never computed elsewhere or substituted, and prefetching never pauses itself.
"""

from collections import deque
from collections.abc import Collection, Sequence

from smoe.core.stats import ExpertStats
from smoe.offload.policies.base import Deaf
from smoe.offload.policies.protocols import Array, Eviction, Key, PolicySet, Reason, Routing
from smoe.offload.policies.waiting import Wait

MOST_SETS = 4096
FEW = 12
"""Up to here looking through a list is as fast as looking into a set."""


def works_for(policies: PolicySet) -> bool:
    """Whether every miss is fetched and waited for."""
    return type(policies.miss) is Wait


def hears_demand(eviction: Eviction) -> bool:
    """Whether it listens to what routers ask for; if not, routings need not be made."""
    return getattr(type(eviction), "demand", None) is not Deaf.demand


class InstantCache:
    """Arguments as Residency's and Planner's; counts are those of ExpertStats, `transfers` all experts carried."""

    def __init__(
        self,
        num_slots: int,
        layers: Sequence[int],
        policies: PolicySet,
        *,
        floor: int,
        max_background: int | None = None,
    ) -> None:
        self.hits = self.cold = self.collisions = self.compulsory = self.evictions = 0
        self.prefetched = self.prefetch_used = self.wasted = self.transfers = 0
        self._num_slots, self._floor = num_slots, floor
        self._max_background = max(1, num_slots // len(layers)) if max_background is None else max_background
        self._eviction, self._prefetch = policies.eviction, policies.prefetch
        # Looked up once: these are called for every expert that comes and goes.
        self._victim, self._admit, self._forget = self._eviction.victim, self._eviction.admit, self._eviction.forget
        self._evictable = self._may_go
        self._next_layer = dict(zip(layers, [*layers[1:], layers[0]], strict=True))
        self._resident: dict[int, set[int]] = {layer: set() for layer in layers}  # in flight ones included
        self._unused: dict[int, set[int]] = {layer: set() for layer in layers}
        self._brought: dict[int, dict[int, int]] = {layer: {} for layer in layers}
        self._held, self._owed = dict.fromkeys(layers, 0), floor * len(layers)
        # Layers above their floors as a set of bits, and for each such set met, which those are.
        self._bit = {layer: 1 << place for place, layer in enumerate(layers)}
        self._above, self._may_lose = 0, dict[int, Sequence[int]]()
        self._free = self._least_free = num_slots
        self._epoch = 1
        # Not to be evicted: these of the layer that runs, and what is on its way for later layers.
        self._layer, self._coming = layers[0], set[Key]()
        self._busy: Collection[int] = ()
        self.needs_routing = self._prefetch is not None or hears_demand(policies.eviction)
        """Whether `run_layer` must be told the routing."""
        self.needs_lookahead = self._prefetch is not None and self._prefetch.needs_lookahead

    def begin_forward(self) -> None:
        self._epoch += 1
        self._eviction.begin_epoch()

    def run_layer(
        self, layer: int, experts: Sequence[int], routing: Routing | None = None, lookahead: Array | None = None
    ) -> None:
        """A pass over distinct, ascending `experts`."""
        self._eviction.begin_layer(layer)
        if self.needs_routing:
            assert routing is not None
            self._eviction.demand(routing)
            if self._prefetch is not None:
                self._prefetch.observe(routing)
        resident = self._resident[layer]
        missing = [expert for expert in experts if expert not in resident]
        if len(missing) < len(experts):
            self._hit(layer, [expert for expert in experts if expert in resident] if missing else experts)
        self._layer, self._busy = layer, experts if len(experts) <= FEW else set(experts)
        if missing:
            self._count(layer, missing)
            for number, expert in enumerate(missing):
                if not self._bring(layer, expert, Reason.DEMAND):
                    self._in_waves(deque(missing[number:]), missing[:number], routing, lookahead)
                    return
        if self._prefetch is not None:
            self._fetch_ahead(routing, lookahead)

    def stats(self) -> ExpertStats:
        return ExpertStats(
            hits=self.hits,
            cold_misses=self.cold,
            collision_misses=self.collisions,
            compulsory_misses=self.compulsory,
            prefetched=self.prefetched,
            prefetch_used=self.prefetch_used,
            wasted=self.wasted,
            evictions=self.evictions,
        )

    @property
    def peak_used(self) -> int:
        return self._num_slots - self._least_free

    def check_integrity(self) -> None:
        """Raises RuntimeError unless what the layers hold and what is free make up all slots."""
        held = {layer: len(resident) for layer, resident in self._resident.items()}
        owed = sum(max(0, self._floor - count) for count in held.values())
        if held != self._held or sum(held.values()) + self._free != self._num_slots or owed != self._owed:
            raise RuntimeError(f"simulated cache: layers hold {held}, counted {self._held}, {self._free} free")

    def _hit(self, layer: int, experts: Sequence[int]) -> None:
        self.hits += len(experts)
        unused = self._unused[layer]
        if unused:
            used = unused.intersection(experts)
            self.prefetch_used += len(used)
            unused -= used
        self._eviction.touch(layer, experts)

    def _count(self, layer: int, missing: Sequence[int]) -> None:
        brought, epoch = self._brought[layer], self._epoch
        self.transfers += len(missing)
        for expert in missing:
            before = brought.get(expert)
            if before == epoch:
                self.collisions += 1
            else:
                self.cold += 1
                if before is None:
                    self.compulsory += 1

    def _in_waves(
        self, waiting: deque[int], issued: list[int], routing: Routing | None, lookahead: Array | None
    ) -> None:
        """The rest of a pass that gets no slot while its hits and `issued` are held: the hits are given back, then
        each wave as it has been computed."""
        busy = set(issued)
        self._busy = busy
        issued = [*issued, *self._bring_some(waiting, busy)]
        planned = self._prefetch is None
        while issued or waiting:
            if not waiting and not planned:
                self._fetch_ahead(routing, lookahead)
                planned = True
            if not issued:  # the policy refuses a slot: computed without one
                waiting.popleft()
                issued = self._bring_some(waiting, busy)
                continue
            arrived, issued = issued, []
            if not waiting:
                break
            for expert in arrived:
                busy.discard(expert)
                if waiting:
                    issued += self._bring_some(waiting, busy)
                    if not waiting and not planned:
                        self._fetch_ahead(routing, lookahead)
                        planned = True
        if not planned:
            self._fetch_ahead(routing, lookahead)

    def _bring_some(self, waiting: deque[int], busy: set[int]) -> list[int]:
        """Those of `waiting`, which it leaves, that get a slot now; they are busy from then on."""
        issued = []
        while waiting and self._bring(self._layer, waiting[0], Reason.DEMAND):
            busy.add(waiting[0])
            issued.append(waiting.popleft())
        return issued

    def _fetch_ahead(self, routing: Routing | None, lookahead: Array | None) -> None:
        assert self._prefetch is not None
        assert routing is not None
        next_layer, all_resident, coming = self._next_layer[self._layer], self._resident, self._coming
        keys = self._prefetch.plan(routing, next_layer, lookahead)
        resident = all_resident[next_layer]
        here = [expert for layer, expert in keys if layer == next_layer and expert in resident]
        if here:
            self._eviction.confirm(next_layer, here)
        if len(here) == len(keys):
            return
        for layer in dict.fromkeys([layer for layer, _ in keys if layer != next_layer]):
            here = [expert for other, expert in keys if other == layer and expert in all_resident[layer]]
            if here:
                self._eviction.confirm(layer, here)
        for key in keys:
            layer, expert = key
            if expert not in all_resident[layer] and self._bring(layer, expert, Reason.PREFETCH):
                coming.add(key)
                self._unused[layer].add(expert)
                if len(coming) >= self._max_background:
                    break
        self.prefetched += len(coming)
        self.transfers += len(coming)
        coming.clear()

    def _bring(self, layer: int, expert: int, reason: Reason) -> bool:
        """Whether a slot could be had; then it is the expert's."""
        if not self._free or not self._take_free(layer):
            may_lose = self._may_lose.get(self._above | self._bit[layer]) or self._find_may_lose(layer)
            victim = self._victim(may_lose, self._evictable, (layer, expert), reason)
            if victim is None:
                return False
            loser, gone = victim
            self._resident[loser].remove(gone)
            self._forget(loser, gone)
            self.evictions += 1
            unused = self._unused[loser]
            if gone in unused:
                unused.remove(gone)
                self.wasted += 1
            if loser != layer:
                self._hold(loser, -1)
                self._hold(layer, 1)
        self._resident[layer].add(expert)
        self._brought[layer][expert] = self._epoch
        self._admit(layer, expert, reason)
        return True

    def _may_go(self, layer: int, expert: int) -> bool:
        if layer == self._layer and expert in self._busy:
            return False
        return not self._coming or (layer, expert) not in self._coming

    def _take_free(self, layer: int) -> bool:
        """Free slots that other layers have not yet taken up to their floors are theirs."""
        if self._free <= self._owed - max(0, self._floor - self._held[layer]):
            return False
        self._free -= 1
        self._least_free = min(self._least_free, self._free)
        self._hold(layer, 1)
        return True

    def _find_may_lose(self, wants: int) -> Sequence[int]:
        among = self._above | self._bit[wants]
        if len(self._may_lose) > MOST_SETS:
            self._may_lose.clear()
        found = self._may_lose[among] = short([layer for layer, bit in self._bit.items() if bit & among])
        return found

    def _hold(self, layer: int, change: int) -> None:
        """`change` is 1 or -1."""
        held = self._held[layer]
        self._held[layer] = held + change
        least = held if change > 0 else held - 1
        if least < self._floor:
            self._owed -= change
        elif least == self._floor:
            self._above ^= self._bit[layer]


def short(layers: Sequence[int]) -> Sequence[int]:
    """The same as a range if it is one, in which policies find a layer without looking through all."""
    whole = range(layers[0], layers[-1] + 1)
    return whole if len(whole) == len(layers) > 1 else layers
